package idempotency

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	// A guard that checks answers may hold a success back (core.CheckAnswer).
	succeeds := success(a.protocol, answer.Status)
	if e.config.guard != nil {
		answered = answered && a.section.BeginAnswer(succeeds)
	}
	lost := e.lost(a) // before the lock is released
	if answered && lost != nil && lost.Reason == reason.Superseded {
		lost = nil // the lock was held until the answer
	}
	marked, over, unit := a.end()
	class := classify(a.protocol, answer.Status)
	if e.config.storeIf != nil {
		class = e.classOf(ctx, class, answer, over)
	}
	var refusedInside *core.Refusal
	if !answered || !succeeds || class == failed {
		refusedInside = a.inside.refusal()
	}
	if unit != nil {
		if v, done := e.concludeUnit(ctx, a, unit, end{answer, class, marked, over, lost, refusedInside}, answered, d); done {
			return v
		}
	}
	switch {
	case over == brokenOff:
		return e.concludeBroken(ctx, a, d)
	case over == takenOver:
		e.leaveRecord(ctx, a)
		return e.superseded(a, a.winner, d)
	case over == sentDecided:
		d.Outcome = observe.DecidedStored
		if e.leaveRecord(ctx, a) {
			d.Outcome = observe.DecidedPending
		}
		return endpoint.Verdict{}
	case lost != nil && (over == withheld || !answered && over == fits):
		// The handler gave up since its context ended, or for reasons of its
		// own: what it did is not known. The claim is left to the end of its lease.
		e.leaveRecord(ctx, a)
		d.Reason, d.Err = string(lost.Reason), lost.Err
		return endpoint.Verdict{Refusal: lost}
	case refusedInside != nil && over == fits:
		e.concludeRefused(ctx, a, refusedInside, marked, d)
		return endpoint.Verdict{Inside: refusedInside}
	case e.config.stores(class, marked):
		return e.storeAnswer(ctx, a, answer, over, d)
	case lost != nil:
		e.leaveRecord(ctx, a)
		d.Err = lost.Err
		return endpoint.Verdict{}
	}
	e.abandon(ctx, a)
	d.Outcome = observe.DecidedReleased
	return endpoint.Verdict{}
}

// errBrokenOff is behind a refusal for a response that its handler has not finished.
var errBrokenOff = errors.New("interlock: the handler broke off a response that it had begun")

// concludeBroken stores that a request was carried out, and that there is no response to it: the
// handler had begun an answer of success when it reported an error. To run it again could have
// its effect twice, and to store the part would pass it for the whole.
func (e *Engine) concludeBroken(ctx context.Context, a *attempt, d *observe.Decided) endpoint.Verdict {
	e.log(ctx, slog.LevelError, "interlock: the handler of an idempotent endpoint broke off a response that it had begun, "+
		"and retries are told that it is not available", a.broken)
	reply, err := e.commit(ctx, a, nil, a.releaseLock)
	switch {
	case err != nil:
		d.Outcome = observe.DecidedPending
	case reply.Stored():
		d.Outcome = observe.DecidedStored
	default:
		return e.superseded(a, reply, d)
	}
	refusal := e.refusal(reason.ResponseUnavailable, fmt.Errorf("%w: %w", ErrResponseUnavailable, a.broken))
	refusal.Ran = true
	d.Reason, d.Err = string(refusal.Reason), a.broken
	return endpoint.Verdict{Refusal: refusal}
}

// lost returns the refusal for a claim, or a lock around the handler, that was lost;
// nil if none was.
func (e *Engine) lost(a *attempt) *core.Refusal {
	var lost *core.Refusal
	if e.config.guard != nil {
		lost = a.section.Lost()
	}
	cause := e.watchdog.lost(a)
	if cause == nil && a.leaseAround != nil {
		cause = a.leaseAround.lost()
	}
	if lost == nil && cause != nil {
		// For any cause (the engine was closed, say) the handler ran.
		lost = &core.Refusal{Reason: reason.Lost, Ran: true, Rule: e.config.name, Err: cause}
		if errors.Is(cause, core.ErrMaxHold) {
			lost.Reason = reason.MaxHold
		}
	}
	return lost
}

// storeAnswer stores the handler's answer.
func (e *Engine) storeAnswer(ctx context.Context, a *attempt, answer endpoint.Response, over overflow, d *observe.Decided) endpoint.Verdict {
	var envelope []byte
	if over == fits && int64(len(answer.Body)) <= e.config.maxResponse {
		envelope = e.envelope(ctx, a, answer)
	}
	reply, err := e.commit(ctx, a, envelope, a.releaseLock)
	switch {
	case err != nil:
		d.Outcome, d.Err = observe.DecidedPending, err
	case reply.Stored():
		d.Outcome = observe.DecidedStored
	case over == fits: // else it has left already, when nothing was to be stored
		return e.superseded(a, reply, d)
	}
	return endpoint.Verdict{}
}

// envelope makes of an answer what is stored.
func (e *Engine) envelope(ctx context.Context, a *attempt, answer endpoint.Response) []byte {
	keep := e.config.storedHeader(a.protocol, answer.Header)
	if len(a.accept) > 0 {
		answer = a.noting(answer)
	}
	envelope := encode(a.protocol, answer, keep)
	if e.config.sealing != nil {
		envelope = e.config.seal(ctx, envelope)
	}
	return envelope
}

// concludePanic decides what becomes of the record when the handler did not return.
func (e *Engine) concludePanic(ctx context.Context, a *attempt, d *observe.Decided) {
	lost := e.lost(a) != nil
	marked, over, unit := a.end()
	if unit != nil {
		if err := unit.Rollback(ctx); err != nil {
			e.logRefusal(ctx, e.leaveUnknown(ctx, a, err, d).Refusal) // the panic is the answer
			return
		}
	}
	refusedInside := a.inside.refusal()
	lost = lost || refusedInside != nil && refusedInside.Ran
	switch {
	case over == brokenOff && unit == nil:
		e.concludeBroken(ctx, a, d) // the panic is the answer
	case over == sentDecided || over == takenOver:
		e.leaveRecord(ctx, a)
		d.Outcome = observe.DecidedStored
	case refusedInside != nil && !refusedInside.Ran && !marked && over == fits:
		e.concludeRefused(ctx, a, refusedInside, marked, d)
	case e.config.stores(failed, marked):
		var envelope []byte
		if over == fits {
			answer := panicked(a.protocol)
			envelope = e.config.seal(ctx, encode(a.protocol, answer, func(string) bool { return true }))
		}
		d.Outcome = observe.DecidedStored
		if reply, err := e.commit(ctx, a, envelope, a.releaseLock); err != nil {
			d.Outcome, d.Err = observe.DecidedPending, err
		} else if !reply.Stored() {
			d.Outcome = observe.DecidedUnknown
		}
	case lost:
		e.leaveRecord(ctx, a)
	default:
		e.abandon(ctx, a)
		d.Outcome = observe.DecidedReleased
	}
}

// concludeRefused decides what becomes of the record when a guard inside the handler
// has answered. Nothing is stored. The claim is given up, unless the
// handler has run or the effect is marked: then the outcome is unknown, and the claim
// is left to the end of its lease.
func (e *Engine) concludeRefused(ctx context.Context, a *attempt, refusal *core.Refusal, marked bool, d *observe.Decided) {
	if refusal.Ran || marked {
		e.leaveRecord(ctx, a)
		d.Reason, d.Err = string(refusal.Reason), refusal.Err
		return
	}
	e.abandon(ctx, a)
	d.Outcome = observe.DecidedReleased
}

// leaveRecord releases the lock and leaves the record as it is: a claim that is still there
// ends with its lease. It reports whether a commit of the attempt still goes on in the
// background.
func (e *Engine) leaveRecord(ctx context.Context, a *attempt) (pending bool) {
	a.section.Leave(ctx)
	return e.watchdog.decide(a)
}

// commit stores an answer, or with a nil envelope that there is none to be had.
// If the store does not confirm it, that goes on in the background: the effect
// has happened, so the claim is never given up. Of ctx only the values are used.
func (e *Engine) commit(ctx context.Context, a *attempt, envelope []byte, release func(context.Context)) (record.CommitReply, error) {
	req := e.commitRequest(a, envelope, release, storeWait)
	reply, err := e.store.Commit(context.WithoutCancel(ctx), req)
	if err == nil {
		e.watchdog.decide(a)
		return reply, nil
	}
	e.log(ctx, slog.LevelWarn, "interlock: the store has not confirmed the response to an idempotent request, which is sent all the same: "+
		"the engine goes on storing it", observe.RootCause(err))
	req.Release = nil // it was called
	e.background.commit(a, req)
	return reply, unavailable(err)
}

// commitRequest is the request that stores an answer within the given time.
func (e *Engine) commitRequest(a *attempt, envelope []byte, release func(context.Context), within time.Duration) record.CommitRequest {
	c := e.config
	return record.CommitRequest{
		ID: a.id, Token: a.token, Fingerprint: a.fingerprint, Generation: a.generation, Response: envelope,
		Retention: c.retention, Tombstone: c.tombstone, Deadline: time.Now().Add(within), Release: release,
	}
}

// abandon gives the claim up, and releases the lock with it. If the store does not confirm it,
// that goes on in the background. Of ctx only the values are used.
func (e *Engine) abandon(ctx context.Context, a *attempt) {
	err := e.store.Abandon(context.WithoutCancel(ctx), record.AbandonRequest{
		ID: a.id, Token: a.token, Deadline: time.Now().Add(storeWait), Release: a.releaseLock,
	})
	if a.ambiguous || err != nil && !errors.Is(err, driver.ErrNotOwner) {
		e.background.abandon(a, a.ambiguous)
		return
	}
	e.watchdog.decide(a)
}

// unitWait bounds the end of a [record.Unit]. Once the commit has been sent, there is
// nothing better to do than to wait for its outcome.
const unitWait = 10 * time.Second

// errOversized is behind a refusal for an answer that is too long for its record,
// where it cannot be sent ahead of the record.
var errOversized = errors.New("interlock: the response is longer than MaxResponse, and the request has a transaction: " +
	"no response leaves before the commit, so a longer one is not possible")

// end is how the handler of an attempt ended.
type end struct {
	answer        endpoint.Response
	class         class
	marked        bool
	overflow      overflow
	lost          *core.Refusal // the claim, or a lock around the handler
	refusedInside *core.Refusal // by a guard inside the handler, in place of its answer
}

// concludeUnit ends the transaction of an attempt whose handler has returned. It
// reports false if the transaction was rolled back and nothing else is special: the
// record is then decided as it is without a transaction.
func (e *Engine) concludeUnit(ctx context.Context, a *attempt, unit record.Unit, by end, answered bool, d *observe.Decided) (endpoint.Verdict, bool) {
	// A claim that was only not renewed still counts if no other attempt has taken
	// over: the commit compares its token. A lock that was lost does not.
	refusal := a.section.Lost()
	lockLost := refusal != nil && refusal.Reason != reason.Superseded || a.leaseAround != nil && a.leaseAround.lost() != nil
	commits := by.overflow == fits && by.refusedInside == nil && !lockLost && (by.lost == nil || answered) &&
		(by.class == final || by.class == invalid) && e.config.stores(by.class, by.marked)
	if commits && int64(len(by.answer.Body)) > e.config.maxResponse { // of a protocol whose answers come whole
		by.overflow = oversized
	}
	if commits && by.overflow == fits {
		return e.commitUnit(ctx, a, unit, by, d), true
	}
	if err := unit.Rollback(ctx); err != nil {
		return e.leaveUnknown(ctx, a, err, d), true
	}
	switch {
	case by.overflow == oversized:
		e.abandonUnmarked(ctx, a, by.marked)
		return e.unitRefused(by.marked, reason.ResponseTooLarge, errOversized, d), true
	case by.overflow == brokenOff:
		e.abandonUnmarked(ctx, a, by.marked)
		return e.unitRefused(by.marked, reason.RolledBack, fmt.Errorf("%w: %w", ErrRolledBack, a.broken), d), true
	case by.overflow == fits && by.refusedInside == nil && by.lost != nil:
		// There will be no effect, for any answer of the handler.
		e.abandonUnmarked(ctx, a, by.marked)
		return e.unitRefused(by.marked, reason.RolledBack, fmt.Errorf("%w: %w", ErrRolledBack, by.lost.Err), d), true
	}
	return endpoint.Verdict{}, false
}

// commitUnit stores the answer and commits the transaction, both or neither.
func (e *Engine) commitUnit(ctx context.Context, a *attempt, unit record.Unit, by end, d *observe.Decided) endpoint.Verdict {
	envelope := e.envelope(ctx, a, by.answer)
	reply, err := unit.Commit(context.WithoutCancel(ctx), e.commitRequest(a, envelope, nil, unitWait))
	switch {
	case errors.Is(err, record.ErrAborted) && !success(a.protocol, by.answer.Status):
		return e.storeAnswer(ctx, a, by.answer, fits, d)
	case errors.Is(err, ErrRolledBack):
		e.abandonUnmarked(ctx, a, by.marked)
		return e.unitRefused(by.marked, reason.RolledBack, err, d)
	case errors.Is(err, record.ErrEnded):
		return e.leaveUnknown(ctx, a, err, d)
	case err != nil:
		// The database decides when it is back: the claim is given up if the
		// transaction was rolled back, and is found completed if not. Until then the
		// request is in flight, for this client too.
		e.log(ctx, slog.LevelWarn, "interlock: it is not known whether the transaction of an idempotent request was committed, "+
			"and the client is told that the request is in flight", observe.RootCause(err))
		a.section.Leave(ctx)
		if by.marked {
			e.watchdog.decide(a)
		} else {
			e.background.abandon(a, a.ambiguous)
		}
		return e.unitRefused(by.marked, reason.InFlight, unavailable(err), d)
	}
	a.section.Leave(ctx) // after the commit, and not with it
	e.watchdog.decide(a)
	if reply.Stored() {
		d.Outcome = observe.DecidedStored
		return endpoint.Verdict{}
	}
	return e.superseded(a, reply, d)
}

// leaveUnknown marks the record of an attempt whose handler has ended the transaction by
// itself: what it has committed may be an effect, and no retry is to have it again. Every
// request of such a handler comes here, so the program is at fault.
func (e *Engine) leaveUnknown(ctx context.Context, a *attempt, err error, d *observe.Decided) endpoint.Verdict {
	marking := e.store.Mark(context.WithoutCancel(ctx), e.markRequest(a))
	if marking != nil && !errors.Is(marking, driver.ErrNotOwner) {
		e.log(ctx, slog.LevelError, "interlock: a handler has ended the transaction of its request, and the record could not be marked: "+
			"a retry after the lease is carried out again", observe.RootCause(marking))
	}
	e.leaveRecord(ctx, a)
	return e.unitRefused(true, reason.OutcomeUnknown, err, d)
}

// abandonUnmarked gives up the claim of an attempt whose transaction was rolled back. A
// marked effect may have happened elsewhere: then the claim is left to the end of its lease,
// and the outcome is unknown.
func (e *Engine) abandonUnmarked(ctx context.Context, a *attempt, marked bool) {
	if marked {
		e.leaveRecord(ctx, a)
		return
	}
	e.abandon(ctx, a)
}

// unitRefused is the verdict for an attempt whose transaction was not committed, or is
// not known to be. The client may try again: the record tells the two apart. It may
// not if an effect elsewhere was marked.
func (e *Engine) unitRefused(marked bool, why reason.Reason, err error, d *observe.Decided) endpoint.Verdict {
	refusal := e.refusal(why, err)
	d.Outcome = observe.DecidedReleased
	if marked {
		refusal.Reason, refusal.Ran = reason.OutcomeUnknown, true
		d.Outcome = observe.DecidedUnknown
	}
	d.Reason, d.Err = string(refusal.Reason), err
	return endpoint.Verdict{Refusal: refusal}
}
