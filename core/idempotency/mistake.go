package idempotency

import (
	"context"
	"log/slog"
	"time"

	"github.com/interlock-go/interlock/core"
)

// rejected refuses a request that was not understood. The server's mistakes are
// logged, since the client is not told what is wrong.
func (e *Engine) rejected(ctx context.Context, begin time.Time, err error) Verdict {
	reason := reasonOf(ctx, err)
	if reason == core.ReasonMisconfigured || reason == core.ReasonInternal {
		e.log(ctx, slog.LevelError, "interlock: an idempotent endpoint refuses requests, since the server is not set up for them", err)
	}
	return e.refuse(ctx, begin, reason, err)
}
