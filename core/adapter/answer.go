package adapter

import (
	"context"

	"github.com/interlock-go/interlock/core/internal/carrier"
)

// BeginAnswer asks whether an answer may leave. An adapter calls it once, with the
// context that Guard.Do of package core gave to its handler, when the handler begins
// an answer that cannot be taken back, and before any part of it leaves. success says
// whether the answer reports success (in HTTP a status below 400).
//
// BeginAnswer returns false if the answer must not leave, because the guard checks
// answers (core.CheckAnswer) and the lock was lost. The adapter then drops the output
// of the handler, and reports to Guard.Do that nothing was answered. Without a guard in
// ctx it returns true.
func BeginAnswer(ctx context.Context, success bool) bool {
	guard, ok := ctx.Value(carrier.Gate).(interface{ Begin(success bool) bool })
	return !ok || guard.Begin(success)
}
