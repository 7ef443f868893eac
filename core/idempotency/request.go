package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/internal/attempts"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/internal/ident"
	"github.com/interlock-go/interlock/core/internal/outcome"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/reason"
)

// Do deals with a request. It reads the key, claims its record and lets h run the
// handler, or finds out what else the client gets. An adapter calls Do once for
// each request and obeys the [endpoint.Verdict].
//
// The context of the handler has the values of ctx, but neither its cancellation
// nor its deadline: a client that goes away does not end what it has begun. The
// context ends when the claim, or the lease that ctx has from a guard around the
// engine, can no longer be trusted ([core.ErrLost]), after [MaxHold]
// ([core.ErrMaxHold]), after [Engine.Close], and when the handler has returned.
//
// The answer is stored before Do returns, so before its first byte can leave. A
// panic of the handler passes through, after the claim was released or, if its
// effect was marked, a status 500 was stored.
func (e *Engine) Do(ctx context.Context, call endpoint.Call, h endpoint.Handler) (v endpoint.Verdict) {
	defer func() {
		if v.Refusal != nil {
			v.Refusal.Profile = e.config.profile
		}
	}()
	method, _, _ := call.Target()
	if _, matched := call.Route(); !matched || passes(call.Protocol(), method) {
		return e.pass(ctx, call, h, &attempt{})
	}
	begin := time.Now()
	key, err := call.Key()
	if errors.Is(err, endpoint.ErrKeyMissing) && e.config.optional {
		return e.pass(ctx, call, h, &attempt{})
	}
	var outer *attempt
	if err == nil {
		if outer = e.enclosing(ctx, call, key); outer != nil && e.sameRequest(outer, call) {
			e.warnTwice(ctx)
			return e.pass(ctx, call, h, outer)
		}
	}
	return e.answer(ctx, call, h, key, err, outer, begin)
}

// answer deals with a request that is to have a record. Its key is key, unless keyErr says
// that it has none. outer is the attempt that it is made in, if that has the same key.
func (e *Engine) answer(
	ctx context.Context, call endpoint.Call, h endpoint.Handler, key string, keyErr error, outer *attempt, begin time.Time,
) (v endpoint.Verdict) {
	admitted := e.drain.admit()
	if admitted {
		defer e.drain.done()
	}
	var a *attempt
	passed := false
	defer func() {
		switch {
		case passed: // the guards that it passed have reported
		case v.Refusal == nil && a != nil:
			outcome.Report(ctx, a.instead)
		default:
			outcome.Report(ctx, v.Refusal)
			e.logRefusal(ctx, v.Refusal)
		}
	}()
	if !admitted {
		return e.refuse(ctx, begin, reason.Closing, core.ErrClosed)
	}
	a, refusal := e.identify(ctx, call, key, keyErr)
	if refusal != nil {
		return e.refused(ctx, begin, refusal)
	}
	reply, err := e.claim(ctx, a)
	if err != nil {
		why := reasonOf(ctx, err)
		if e.config.failOpen && why == reason.NoRecord && !errors.Is(err, ErrDamaged) && ctx.Err() == nil {
			e.bypassed(ctx, err)
			passed = true
			return e.pass(ctx, call, h, &attempt{id: a.id})
		}
		return e.refuse(ctx, begin, why, err)
	}
	if reply.State == record.StateGranted {
		return e.run(ctx, h, a, begin)
	}
	e.warnShared(ctx, outer, reply.State)
	return e.replay(ctx, a, reply, begin)
}

// identify makes the attempt of a request: whose key it has, and what makes another
// request the same. Nothing is claimed yet.
func (e *Engine) identify(ctx context.Context, call endpoint.Call, key string, keyErr error) (*attempt, *core.Refusal) {
	switch {
	case isForeign(call):
		return nil, e.refuseForeign(ctx)
	case errors.Is(keyErr, endpoint.ErrKeyMissing):
		return nil, e.refusal(reason.KeyMissing, keyErr)
	case keyErr != nil:
		return nil, e.refusal(reason.KeyMalformed, keyErr)
	}
	scope, err := e.scope(ctx, call)
	if err != nil {
		return nil, e.unscoped(ctx, err)
	}
	body, err := call.Body(e.config.maxRequest)
	if err != nil {
		return nil, e.refusal(reasonOf(ctx, err), err)
	}
	a := &attempt{engine: e, id: ident.Record(scope, key), token: e.tokens.next(), protocol: call.Protocol()}
	a.target[0], a.target[1], a.target[2] = call.Target()
	a.origin[0], a.origin[1], a.origin[2] = call.Origin()
	if a.protocol == endpoint.HTTP {
		a.accept = call.Header("Accept-Encoding")
	}
	if g := e.config.guard; g != nil {
		// Its keys tell requests apart, and nothing is claimed if there are none.
		prepared, refusal := g.Prepare(ctx, call)
		if refusal != nil {
			return nil, refusal
		}
		a.prepared = prepared
	}
	if a.fingerprint, a.fingerprint1, err = e.config.fingerprints(ctx, call, a.prepared.Keys(), body); err != nil {
		return nil, e.refusal(reasonOf(ctx, err), err)
	}
	return a, nil
}

// pass runs the handler without a record, under the lock if there is a guard.
func (e *Engine) pass(ctx context.Context, call endpoint.Call, h endpoint.Handler, a *attempt) endpoint.Verdict {
	inner := ctx
	if a != fromContext(ctx) {
		inner = context.WithValue(ctx, attempts.Key{}, a)
	}
	if g := e.config.guard; g != nil {
		return endpoint.Verdict{Refusal: g.Do(inner, call, h.Pass)}
	}
	h.Pass(inner)
	return endpoint.Verdict{}
}

// run runs the handler for a claim that was granted.
func (e *Engine) run(ctx context.Context, h endpoint.Handler, a *attempt, begin time.Time) endpoint.Verdict {
	inner, cancel := context.WithCancelCause(context.WithValue(context.WithoutCancel(ctx), attempts.Key{}, a))
	inner = outcome.With(inner, a.inside.note)
	a.ctx, a.cancel = inner, cancel
	// The handler's context ends with it, also after a panic.
	defer cancel(core.ErrReleased)
	if !e.renewer.begin(a) {
		_ = e.store.Abandon(inner, record.AbandonRequest{ID: a.id, Token: a.token, Deadline: time.Now().Add(storeWait)})
		return e.refuse(ctx, begin, reason.Closing, core.ErrClosed)
	}
	defer e.renewer.end(a)
	section, refusal := e.lockOrAbandon(ctx, inner, a)
	if refusal != nil {
		return e.refused(ctx, begin, refusal)
	}
	a.section = section
	a.outer = watchOuter(ctx, cancel)
	defer a.outer.unwatch()
	decided := observe.Decided{Outcome: observe.DecidedUnknown, Generation: a.generation, Waited: time.Since(begin)}
	defer func() { e.report(ctx, decided) }()
	returned := false
	defer func() {
		if !returned { // a panic, or runtime.Goexit
			e.concludePanic(inner, a, &decided)
		}
	}()
	answer, answered := h.Run(section.Context(), a)
	returned = true
	return e.conclude(inner, a, answer, answered, &decided)
}

// lockOrAbandon is lock, and gives the claim up if the handler is not to run: the
// lock refused, or a function of the rule (KeyFunc, PerPrincipal, an observer)
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

// lock takes the locks of the guard, if there is a guard, for a handler that is to
// run under inner. While it waits, the client counts: when ctx ends, its place is
// freed. Once it has the locks, the client does not count any more.
func (e *Engine) lock(ctx, inner context.Context, a *attempt) (core.Section, *core.Refusal) {
	g := e.config.guard
	if g == nil {
		return a.prepared.Enter(inner) // it is empty, and takes no lock
	}
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
		refusal = &core.Refusal{Rule: g.Name(), Err: fmt.Errorf("interlock: waiting for the lock: %w", context.Cause(ctx))}
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
