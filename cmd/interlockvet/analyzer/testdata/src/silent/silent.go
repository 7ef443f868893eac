// Package silent has a report that is silenced, with a reason.
package silent

import (
	"context"

	"github.com/interlock-go/interlock/core"
)

func work(ctx context.Context, locker *core.Locker) {
	locker.Lock(ctx, "forever") //nolint:interlockvet // the process keeps it
}
