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

// errBrokenOff is the cause of a refusal: the handler has not finished its response.
var errBrokenOff = errors.New("interlock: the handler broke off a response that it had begun")

// conclusion is an attempt after the end of its handler.
type conclusion struct {
	facts
	attempt *attempt
	answer  endpoint.Response
	loss    *core.Refusal      // of facts.lost
	refused *core.Refusal      // of facts.inner
	err     error              // why the transaction is not committed
	winner  record.CommitReply // of another attempt that has taken over
}

// conclude decides about the record and the client's answer when the handler has ended: it
// collects the facts, settle makes a plan of them, and conclude carries the plan out.
func (e *Engine) conclude(ctx context.Context, a *attempt, answer endpoint.Response, answered bool, d *observe.Decided) endpoint.Verdict {
	c := &conclusion{attempt: a, answer: answer, facts: facts{silent: !answered, policy: e.config.policy}}
	c.success, c.long = success(a.protocol, answer.Status), int64(len(answer.Body)) > e.config.maxResponse
	c.loss, c.lockLost = e.lost(a, answered) // before the lock is released
	unit := a.end(&c.facts)
	c.lost, c.winner = c.loss != nil, a.winner
	c.class = e.classOf(ctx, classify(a.protocol, answer.Status), answer, c.facts)
	if !answered || !c.success || c.class == failed {
		c.refused = a.inside.refusal()
		c.inner, c.innerRan = c.refused != nil, c.refused != nil && c.refused.Ran
	}
	if unit != nil {
		c.unit = unitOpen
		c.unit = e.endUnit(ctx, c, unit, settle(c.facts).does == commitUnit)
	}
	if a.stepEnded && c.unit != unitCommitted {
		c.unit, c.err = unitEnded, record.ErrEnded
	}
	p := settle(c.facts)
	if a.stored != "" && (p.does == store || c.unit == unitCommitted) {
		e.warnUnasked(ctx, a)
	}
	return e.carryOut(ctx, c, p, d)
}

// lost returns the refusal for a claim that was lost, or for a lock around the handler; nil if
// none was. A lock that is superseded is held until the handler has answered.
func (e *Engine) lost(a *attempt, answered bool) (lost *core.Refusal, lock bool) {
	section := a.section.Lost()
	if section != nil && section.Reason != reason.Superseded {
		return section, true
	}
	cause := a.leaseAround.lost()
	lock = cause != nil
	if !lock {
		cause = e.watchdog.lost(a)
	}
	switch {
	case cause != nil:
		// For any cause (the engine was closed, say) the handler ran.
		lost = &core.Refusal{Reason: reason.Lost, Ran: true, Rule: e.config.name, Err: cause}
		if errors.Is(cause, core.ErrMaxHold) {
			lost.Reason = reason.MaxHold
		}
	case !answered:
		lost = section
	}
	return lost, lock
}

// endUnit commits a transaction, or rolls it back.
func (e *Engine) endUnit(ctx context.Context, c *conclusion, unit record.Unit, commits bool) unitState {
	if !commits {
		if c.err = unit.Rollback(ctx); c.err != nil {
			return unitEnded
		}
		return unitRolledBack
	}
	envelope := e.envelope(c.attempt, c.answer)
	req := e.commitRequest(c.attempt, envelope, nil, unitWait)
	if keep := c.attempt.promise(); keep > 0 {
		req.Interim, req.HandOver, req.Retention = true, keep, req.Retention+keep
	}
	c.winner, c.err = unit.Commit(context.WithoutCancel(ctx), req)
	switch {
	case c.err == nil && c.winner.Stored():
		return unitCommitted
	case c.err == nil:
		return unitOvertaken
	case errors.Is(c.err, record.ErrAborted):
		return unitAborted
	case errors.Is(c.err, ErrRolledBack):
		return unitRefused
	case errors.Is(c.err, record.ErrEnded):
		return unitEnded
	}
	c.err = unavailable(c.err)
	return unitUnclear
}

// carryOut carries a plan out on the record, and returns its verdict for the client.
func (e *Engine) carryOut(ctx context.Context, c *conclusion, p plan, d *observe.Decided) endpoint.Verdict {
	a := c.attempt
	switch p.does {
	case store, storeNone:
		var envelope []byte
		if p.does == store {
			envelope = e.envelope(a, c.answer)
		}
		reply, err := e.commit(ctx, a, envelope, a.releaseLock)
		if p.does == storeNone && c.overflow == brokenOff {
			e.log(ctx, slog.LevelError, "interlock: the handler of an idempotent endpoint broke off a response that it had begun, "+
				"and retries are told that it is not available", a.broken)
		}
		switch {
		case err != nil:
			d.Outcome, d.Err = observe.DecidedPending, err
		case reply.Stored():
			d.Outcome = observe.DecidedStored
		case c.overflow != sentUndecided: // which has left already
			return e.superseded(a, reply, d)
		}
	case abandon:
		e.abandon(ctx, a)
		d.Outcome = observe.DecidedReleased
	case abandonLater:
		// The claim is given up if the transaction was rolled back, and is found completed if
		// not. Until then the request is in flight, for this client too.
		a.section.Leave(ctx)
		e.background.abandon(a, a.ambiguous)
		e.log(ctx, slog.LevelWarn, "interlock: it is not known whether the transaction of an idempotent request was committed, "+
			"and the client is told that the request is in flight", observe.RootCause(c.err))
		d.Outcome = observe.DecidedReleased
	case mark:
		e.markUnknown(ctx, a)
		e.leaveRecord(ctx, a)
	case leave:
		e.leaveRecord(ctx, a)
	case keep:
		d.Outcome = observe.DecidedStored
		if e.leaveRecord(ctx, a) {
			d.Outcome = observe.DecidedPending
		}
	}
	return e.verdictOf(c, p, d)
}

// verdictOf is the verdict of a plan for the client.
func (e *Engine) verdictOf(c *conclusion, p plan, d *observe.Decided) (v endpoint.Verdict) {
	why := c.loss
	switch p.gets {
	case ownAnswer:
		if p.does == leave && why != nil {
			d.Err = why.Err
		}
		return v
	case winners:
		return e.superseded(c.attempt, c.winner, d)
	case lossOf:
		v.Refusal = why
	case inners:
		if v.Inside, why = c.refused, c.refused; p.does == abandon {
			return v
		}
	case refusal:
		v.Refusal = e.refusal(p.why, c.cause())
		v.Refusal.Ran, why = p.does != abandon && p.does != abandonLater, v.Refusal
	}
	d.Reason, d.Err = string(why.Reason), why.Err
	return v
}

// cause is the error that caused a refusal of the engine.
func (c *conclusion) cause() error {
	switch {
	case c.err != nil:
		return c.err
	case c.tooLarge():
		return errOversized
	case c.stepOpen:
		return errStepUnsure
	case c.unit == unitNone:
		return fmt.Errorf("%w: %w", ErrResponseUnavailable, c.attempt.broken)
	case c.overflow == brokenOff:
		return fmt.Errorf("%w: %w", ErrRolledBack, c.attempt.broken)
	}
	return fmt.Errorf("%w: %w", ErrRolledBack, c.loss.Err)
}

// envelope encodes an answer for the store.
func (e *Engine) envelope(a *attempt, answer endpoint.Response) []byte {
	keep := e.config.storedHeader(a.protocol, answer.Header)
	if len(a.accept) > 0 {
		answer = a.noting(answer)
	}
	envelope := encode(a.protocol, answer, keep)
	if e.config.sealing != nil {
		envelope = e.config.seal(envelope)
	}
	return envelope
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
	req.Release = nil // it was called
	e.background.commit(a, req)
	e.log(ctx, slog.LevelWarn, "interlock: the store has not confirmed the response to an idempotent request, which is sent all the same: "+
		"the engine goes on storing it", observe.RootCause(err))
	return reply, unavailable(err)
}

// commitRequest is the request that stores an answer within the given time.
func (e *Engine) commitRequest(a *attempt, envelope []byte, release func(context.Context), within time.Duration) record.CommitRequest {
	c := e.config
	return record.CommitRequest{
		ID: a.id, Token: a.token, Fingerprint: a.fingerprint, Generation: a.generation, Response: envelope, Interim: a.isHandedOver(),
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

// errOversized is the cause of a refusal: the answer is too long for its record, and
// cannot be sent ahead of the record.
var errOversized = errors.New("interlock: the response is longer than MaxResponse, and the request has a transaction: " +
	"no response leaves before the commit, so a longer one is not possible")

// markUnknown marks the record of an attempt if its handler has ended the transaction by itself:
// the handler may have committed an effect, and no retry is to have it again. Every request of
// such a handler comes here, so the program is at fault.
func (e *Engine) markUnknown(ctx context.Context, a *attempt) {
	err := e.store.Mark(context.WithoutCancel(ctx), e.markRequest(a))
	if err == nil {
		a.mu.Lock()
		a.marked = true
		a.mu.Unlock()
	} else if !errors.Is(err, driver.ErrNotOwner) {
		e.log(ctx, slog.LevelError, "interlock: a handler has ended the transaction of its request, and the record could not be marked: "+
			"a retry after the lease is carried out again", observe.RootCause(err))
	}
}
