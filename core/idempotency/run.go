package idempotency

import (
	"context"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/internal/carrier"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/reason"
)

// run runs the handler for a claim that was granted.
func (e *Engine) run(ctx context.Context, h endpoint.Handler, a *attempt, begin time.Time) endpoint.Verdict {
	// Three contexts from here on: ctx is the client's, claimed goes on without the client and
	// ends with the claim, and under is the handler's: claimed, or with a guard the context of
	// the lock, which derives from claimed.
	claimed, cancel := context.WithCancelCause(context.WithValue(context.WithoutCancel(ctx), carrier.Attempt, a))
	claimed = context.WithValue(claimed, carrier.Reporter, a.inside.note)
	a.ctx, a.cancel = claimed, cancel
	// The handler's context ends with it, also after a panic.
	defer cancel(core.ErrReleased)
	if !e.watchdog.begin(a) {
		_ = e.store.Abandon(claimed, record.AbandonRequest{ID: a.id, Token: a.token, Deadline: time.Now().Add(storeWait)})
		return e.refuse(ctx, begin, e.refusal(reason.Closing, core.ErrClosed))
	}
	defer e.watchdog.end(a)
	under := claimed
	if e.config.guard != nil && !a.job {
		section, refusal := e.lockOrAbandon(ctx, claimed, a)
		if refusal != nil {
			return e.refuse(ctx, begin, refusal)
		}
		a.section, a.releaseLock, under = section, section.Leave, section.Context()
	}
	if lease := core.LeaseFromContext(ctx); lease != nil {
		a.leaseAround = watchAround(lease, cancel)
		defer a.leaseAround.unwatch()
	}
	decided := &observe.Decided{Outcome: observe.DecidedUnknown, Generation: a.generation, Record: a.id, Waited: time.Since(begin)}
	a.decided = decided
	defer func() {
		if e.report(ctx, *decided); decided.Outcome == observe.DecidedUnknown {
			e.logUnknown(ctx, a.id, decided.Err, a.isLast())
		}
	}()
	returned := false
	defer func() {
		if !returned { // a panic, or runtime.Goexit; that is the answer
			e.conclude(claimed, a, panicAnswer(a.protocol), true, decided)
		}
	}()
	answer, answered := h.Run(under, a)
	returned = true
	// A guard that checks answers may hold a success back (core.CheckAnswer).
	answered = answered && a.section.BeginAnswer(success(a.protocol, answer.Status))
	return e.conclude(claimed, a, answer, answered, decided)
}

// lockOrAbandon is lock, and gives the claim up if the handler is not to run: the
// lock refused, or a function of the guard (KeyFunc, PerPrincipal, an observer)
// panicked.
func (e *Engine) lockOrAbandon(ctx, claimed context.Context, a *attempt) (section core.Section, refusal *core.Refusal) {
	locked := false
	defer func() {
		if !locked { // the handler did not run, and has marked nothing
			e.abandon(claimed, a)
		}
	}()
	section, refusal = e.lock(ctx, claimed, a)
	locked = refusal == nil
	return section, refusal
}

// lock takes the locks of the guard for a handler that is to run under claimed. While it
// waits, the client counts: when ctx ends, so does the context waiting, and the place in the
// queue is freed. Once it has the locks, the client does not count any more.
func (e *Engine) lock(ctx, claimed context.Context, a *attempt) (core.Section, *core.Refusal) {
	waiting, cancel := context.WithCancelCause(claimed)
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	section, refusal := a.prepared.Enter(waiting)
	gone := !stop()
	if refusal == nil && !gone {
		return section, nil // waiting ends with claimed
	}
	if refusal == nil {
		// The client went away while the lock was granted: the context of the lease
		// has ended, or is about to.
		section.Leave(waiting)
		refusal = &core.Refusal{Rule: e.config.guard.Name(), Err: fmt.Errorf("interlock: waiting for the lock: %w", context.Cause(ctx))}
		refusal.Reason = core.ReasonOf(ctx, refusal.Err)
	}
	cancel(core.ErrReleased)
	switch refusal.Reason {
	case reason.Canceled:
		// The wait was ended by our own context; why, the request's knows.
		refusal.Reason = core.ReasonOf(ctx, refusal.Err)
	case reason.Lost, reason.MaxHold:
		// The claim, not the lock: it was lost while the lock was waited for.
		refusal.Reason, refusal.Rule = reason.NoRecord, e.config.name
	}
	return section, refusal
}
