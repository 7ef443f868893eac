package idempotency

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/reason"
)

// conclude decides what becomes of the record, and what the client gets, when the
// handler has returned.
func (e *Engine) conclude(ctx context.Context, a *attempt, answer endpoint.Response, answered bool, d *observe.Decided) endpoint.Verdict {
	// A rule that checks answers may hold a success back (core.CheckAnswer).
	answered = answered && a.section.BeginAnswer(success(a.protocol, answer.Status))
	lost := e.lost(a) // before the lock is released
	marked, large, unit := a.conclude()
	refused := a.inside.refusal(!answered || !success(a.protocol, answer.Status))
	if unit != nil {
		if v, done := e.concludeUnit(ctx, a, unit, end{answer, marked, large, lost, refused}, answered, d); done {
			return v
		}
	}
	switch {
	case large == superseded:
		e.letGo(ctx, a)
		return e.superseded(a, a.winner, d)
	case large == stored:
		d.Outcome = observe.DecidedStored
		if e.letGo(ctx, a) {
			d.Outcome = observe.DecidedPending
		}
		return endpoint.Verdict{}
	case lost != nil && (large == withheld || !answered && large == small):
		// The handler gave up since its context ended, or for reasons of its
		// own: what it did is not known. The claim is left to the end of its lease.
		e.letGo(ctx, a)
		d.Reason, d.Err = string(lost.Reason), lost.Err
		return endpoint.Verdict{Refusal: lost}
	case refused != nil && large == small:
		e.concludeRefused(ctx, a, refused, marked, d)
		a.instead = refused
		return endpoint.Verdict{}
	case e.config.stores(classify(a.protocol, answer.Status), marked):
		return e.storeAnswer(ctx, a, answer, large, d)
	case lost != nil:
		e.letGo(ctx, a)
		d.Err = lost.Err
		return endpoint.Verdict{}
	}
	e.abandon(ctx, a, a.section.Leave)
	d.Outcome = observe.DecidedReleased
	return endpoint.Verdict{}
}

// lost returns the refusal for a claim, or a lock around the handler, that was lost;
// nil if none was.
func (e *Engine) lost(a *attempt) *core.Refusal {
	lost := a.section.Lost()
	cause := e.renewer.lost(a)
	if cause == nil {
		cause = a.outer.lost()
	}
	if lost == nil && cause != nil {
		// Whatever the cause (the engine was closed, say): the handler ran.
		lost = &core.Refusal{Reason: reason.Lost, Ran: true, Rule: e.config.name, Err: cause}
		if errors.Is(cause, core.ErrMaxHold) {
			lost.Reason = reason.MaxHold
		}
	}
	return lost
}

// storeAnswer stores the handler's answer.
func (e *Engine) storeAnswer(ctx context.Context, a *attempt, answer endpoint.Response, large largeness, d *observe.Decided) endpoint.Verdict {
	var envelope []byte
	if large == small && int64(len(answer.Body)) <= e.config.maxResponse {
		envelope = e.config.seal(ctx, encode(a.protocol, answer, e.config.storedHeader(a.protocol, answer.Header)))
	}
	reply, err := e.commit(ctx, a, envelope, a.section.Leave)
	switch {
	case err != nil:
		d.Outcome, d.Err = observe.DecidedPending, err
	case reply.State == record.StateGranted:
		d.Outcome = observe.DecidedStored
	case large == small: // else it has left already, when nothing was to be stored
		return e.superseded(a, reply, d)
	}
	return endpoint.Verdict{}
}

// concludePanic decides what becomes of the record when the handler did not return.
func (e *Engine) concludePanic(ctx context.Context, a *attempt, d *observe.Decided) {
	lost := e.lost(a) != nil
	marked, large, unit := a.conclude()
	if unit != nil {
		unit.Rollback(ctx)
	}
	refused := a.inside.refusal(true)
	lost = lost || refused != nil && refused.Ran
	switch {
	case large == stored || large == superseded:
		e.letGo(ctx, a)
		d.Outcome = observe.DecidedStored
	case refused != nil && !refused.Ran && !marked && large == small:
		e.concludeRefused(ctx, a, refused, marked, d)
	case e.config.stores(failed, marked):
		var envelope []byte
		if large == small {
			answer := panicked(a.protocol)
			envelope = e.config.seal(ctx, encode(a.protocol, answer, func(string) bool { return true }))
		}
		d.Outcome = observe.DecidedStored
		if reply, err := e.commit(ctx, a, envelope, a.section.Leave); err != nil {
			d.Outcome, d.Err = observe.DecidedPending, err
		} else if reply.State != record.StateGranted {
			d.Outcome = observe.DecidedUnknown
		}
	case lost:
		e.letGo(ctx, a)
	default:
		e.abandon(ctx, a, a.section.Leave)
		d.Outcome = observe.DecidedReleased
	}
}

// concludeRefused decides what becomes of the record when the answer is that of a
// guard inside the handler. Nothing is stored. The claim is given up, unless the
// handler has run or the effect is marked: then the outcome is unknown, and the claim
// is left to the end of its lease.
func (e *Engine) concludeRefused(ctx context.Context, a *attempt, refusal *core.Refusal, marked bool, d *observe.Decided) {
	if refusal.Ran || marked {
		e.letGo(ctx, a)
		d.Reason, d.Err = string(refusal.Reason), refusal.Err
		return
	}
	e.abandon(ctx, a, a.section.Leave)
	d.Outcome = observe.DecidedReleased
}

// letGo releases the lock and leaves the record as it is. It reports whether a commit
// of the attempt still goes on in the background.
func (e *Engine) letGo(ctx context.Context, a *attempt) (pending bool) {
	a.section.Leave(ctx)
	return e.renewer.decide(a)
}

// commit stores an answer, or with a nil envelope that there is none to be had.
// If the store does not confirm it, that goes on in the background: the effect
// has happened, so the claim is never given up. Of ctx only the values are used.
func (e *Engine) commit(ctx context.Context, a *attempt, envelope []byte, release func(context.Context)) (record.CommitReply, error) {
	req := e.commitRequest(a, envelope, release, storeWait)
	reply, err := e.store.Commit(context.WithoutCancel(ctx), req)
	if err == nil {
		e.renewer.decide(a)
		return reply, nil
	}
	req.Release = nil // it was called
	e.background.commit(a, req)
	return reply, unavailable(err)
}

// commitRequest is the request that stores an answer within the given time.
func (e *Engine) commitRequest(a *attempt, envelope []byte, release func(context.Context), within time.Duration) record.CommitRequest {
	c := e.config
	return record.CommitRequest{
		ID: a.id, Token: a.token, Fingerprint: a.fingerprint, Fingerprint1: a.fingerprint1, Generation: a.generation, Response: envelope,
		Retention: c.retention, Tombstone: c.tombstone, Deadline: time.Now().Add(within), Release: release,
	}
}

// abandon gives the claim up, in the background if it must be. Of ctx only the
// values are used.
func (e *Engine) abandon(ctx context.Context, a *attempt, release func(context.Context)) {
	err := e.store.Abandon(context.WithoutCancel(ctx), record.AbandonRequest{
		ID: a.id, Token: a.token, Deadline: time.Now().Add(storeWait), Release: release,
	})
	if a.ambiguous || err != nil && !errors.Is(err, driver.ErrNotOwner) {
		e.background.abandon(a, a.ambiguous)
		return
	}
	e.renewer.decide(a)
}
