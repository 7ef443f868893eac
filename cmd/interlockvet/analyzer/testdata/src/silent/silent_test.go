package silent

import (
	"context"

	"github.com/interlock-go/interlock/core"
)

func probe(ctx context.Context, locker *core.Locker) { locker.TryLock(ctx, "held") }
