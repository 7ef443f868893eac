package adapter

import (
	"context"
	"sync/atomic"

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

// NoteStuck notes for the request of ctx that a call of its handler was refused because the callers hold
// the lock (reason.HeldByCaller). Clients call it with the context of the call.
func NoteStuck(ctx context.Context) {
	if stuck, _ := carrier.Value(ctx, carrier.Stuck).(*atomic.Bool); stuck != nil {
		stuck.Store(true)
	}
}

// IsStuck reports whether the handler of a request has met such a refusal ([NoteStuck]), and its callers hold locks.
// A failure of such a handler stays until the callers have ended. The adapter of a server says so
// with the answer, or the clients of the callers would repeat the request for as long as they have patience.
func IsStuck(ctx context.Context) bool {
	stuck, _ := carrier.Value(ctx, carrier.Stuck).(*atomic.Bool)
	return stuck != nil && stuck.Load()
}
