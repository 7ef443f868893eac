package once

import (
	"context"

	"github.com/interlock-go/interlock/core/idempotency"
)

// Look returns how far the function of a key is, without running it, and the stored result if
// there is one ([idempotency.StageFinished]): for a monitor that asks whether a job has run. It takes the
// options of [Do].
//
// If err is not nil, out is the zero value. The error is a [*StoredError] if an error is the stored
// answer of the key; it matches [idempotency.ErrResponseUnavailable] if the function ran and its
// result is not stored, [idempotency.ErrDamaged] if the record cannot be read, [core.ErrUnavailable]
// if the store cannot be reached, and [core.ErrConfig] if an option cannot work. One request to the
// store, which changes nothing. Look is safe for concurrent use.
func Look[Out any](ctx context.Context, engine *idempotency.Engine, key string, opts ...Option) (out Out, stage idempotency.Stage, err error) {
	var none Out
	f, err := newFunction(ctx, engine, key, nil, opts)
	if err != nil {
		return none, "", err
	}
	progress, err := engine.LookCall(ctx, f)
	if err != nil || progress.Stage != idempotency.StageFinished {
		return none, progress.Stage, err
	}
	if progress.Answer == nil {
		return none, progress.Stage, idempotency.ErrResponseUnavailable
	}
	if err := f.replay(progress.Answer, &out); err != nil {
		return none, progress.Stage, err
	}
	return out, progress.Stage, nil
}
