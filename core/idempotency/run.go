package idempotency

import (
	"context"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/internal/attempts"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/internal/outcome"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/reason"
)

// run runs the handler for a claim that was granted.
func (e *Engine) run(ctx context.Context, h endpoint.Handler, a *attempt, begin time.Time) endpoint.Verdict {
	inner, cancel := context.WithCancelCause(context.WithValue(context.WithoutCancel(ctx), attempts.Key{}, a))
	inner = outcome.With(inner, a.inside.note)
	a.ctx, a.cancel = inner, cancel
	// The handler's context ends with it, also after a panic.
	defer cancel(core.ErrReleased)
	if !e.watchdog.begin(a) {
		_ = e.store.Abandon(inner, record.AbandonRequest{ID: a.id, Token: a.token, Deadline: time.Now().Add(storeWait)})
		return e.refuse(ctx, begin, reason.Closing, core.ErrClosed)
	}
	defer e.watchdog.end(a)
	under := inner // what the handler runs under
	if e.config.guard != nil {
		section, refusal := e.lockOrAbandon(ctx, inner, a)
		if refusal != nil {
			return e.refused(ctx, begin, refusal)
		}
		a.section, a.release, under = section, section.Leave, section.Context()
	}
	if lease := core.LeaseFromContext(ctx); lease != nil {
		a.outer = watchOuter(lease, cancel)
		defer a.outer.unwatch()
	}
	decided := observe.Decided{Outcome: observe.DecidedUnknown, Generation: a.generation, Waited: time.Since(begin)}
	if e.config.observer != nil {
		defer func() { e.report(ctx, decided) }()
	}
	returned := false
	defer func() {
		if !returned { // a panic, or runtime.Goexit
			e.concludePanic(inner, a, &decided)
		}
	}()
	answer, answered := h.Run(under, a)
	returned = true
	return e.conclude(inner, a, answer, answered, &decided)
}

// lockOrAbandon is lock, and gives the claim up if the handler is not to run: the
// lock refused, or a function of the guard (KeyFunc, PerPrincipal, an observer)
// panicked.
func (e *Engine) lockOrAbandon(ctx, inner context.Context, a *attempt) (section core.Section, refusal *core.Refusal) {
	locked := false
	defer func() {
		if !locked { // the handler did not run, and has marked nothing
			e.abandon(inner, a, nil)
		}
	}()
	section, refusal = e.lock(ctx, inner, a)
	locked = refusal == nil
	return section, refusal
}

// lock takes the locks of the guard for a handler that is to
// run under inner. While it waits, the client counts: when ctx ends, its place is
// freed. Once it has the locks, the client does not count any more.
func (e *Engine) lock(ctx, inner context.Context, a *attempt) (core.Section, *core.Refusal) {
	inside, cancel := context.WithCancelCause(inner)
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	section, refusal := a.prepared.Enter(inside)
	gone := !stop()
	if refusal == nil && !gone {
		return section, nil // inside ends with inner
	}
	if refusal == nil {
		// The client went away while the lock was granted: the context of the lease
		// has ended, or is about to.
		section.Leave(inside)
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
