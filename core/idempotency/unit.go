package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/reason"
)

// unitWait bounds the end of a [record.Unit]. Once the commit has been sent, there is
// nothing better to do than to wait for its outcome.
const unitWait = 10 * time.Second

// errOversized is behind a refusal for an answer that is too long for its record,
// where it cannot be sent ahead of the record.
var errOversized = errors.New("interlock: the response is longer than MaxResponse, and the request has a transaction: " +
	"no response leaves before the commit, so a longer one is not possible")

// Enlist implements [record.Enlist].
func (a *attempt) Enlist(
	ctx context.Context, begin func(context.Context, record.Claim) (record.Unit, error),
) (record.Unit, error) {
	if a.engine == nil {
		return nil, ErrNoAttempt
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.live(); err != nil {
		return nil, fmt.Errorf("interlock: beginning a transaction: %w", err)
	}
	if a.large != small {
		return nil, fmt.Errorf("interlock: beginning a transaction: the response has been sent already: %w", errOversized)
	}
	if a.unit == nil {
		unit, err := begin(ctx, record.Claim{Store: a.engine.store, ID: a.id, Token: a.token, Lease: a.engine.config.lease})
		if err != nil {
			return nil, err
		}
		a.unit = unit
	}
	return a.unit, nil
}

// live returns why the attempt can begin nothing more, or nil. The caller has a.mu.
func (a *attempt) live() error {
	if a.ended {
		return fmt.Errorf("%w: the handler has returned", core.ErrLost)
	}
	return a.engine.renewer.lost(a)
}

// end is how the handler of an attempt ended.
type end struct {
	answer  endpoint.Response
	marked  bool
	large   largeness
	lost    *core.Refusal // the claim, or a lock around the handler
	refused *core.Refusal // by a guard inside the handler, in place of its answer
}

// concludeUnit ends the transaction of an attempt whose handler has returned. It
// reports false if the transaction was rolled back and nothing else is special: the
// record is then decided as it is without a transaction.
func (e *Engine) concludeUnit(ctx context.Context, a *attempt, unit record.Unit, by end, answered bool, d *observe.Decided) (endpoint.Verdict, bool) {
	class := classify(a.protocol, by.answer.Status)
	// A claim that was only not renewed still counts if no other attempt has taken
	// over: the commit compares its token. A lock that was lost does not.
	lockLost := a.section.Lost() != nil || a.outer.lost() != nil
	commits := by.large == small && by.refused == nil && !lockLost && (by.lost == nil || answered) &&
		(class == final || class == invalid) && e.config.stores(class, by.marked)
	if commits && int64(len(by.answer.Body)) > e.config.maxResponse { // of a protocol whose answers come whole
		by.large = oversized
	}
	switch {
	case commits && by.large == small:
		return e.commitUnit(ctx, a, unit, by, d), true
	case by.large == oversized:
		unit.Rollback(ctx)
		e.giveUp(ctx, a, by.marked)
		return e.unitRefused(by.marked, reason.ResponseTooLarge, errOversized, d), true
	case by.large == small && by.refused == nil && by.lost != nil:
		// Whatever the handler answered, there will be no effect.
		unit.Rollback(ctx)
		e.giveUp(ctx, a, by.marked)
		return e.unitRefused(by.marked, reason.RolledBack, fmt.Errorf("%w: %w", ErrRolledBack, by.lost.Err), d), true
	}
	unit.Rollback(ctx)
	return endpoint.Verdict{}, false
}

// commitUnit stores the answer and commits the transaction, both or neither.
func (e *Engine) commitUnit(ctx context.Context, a *attempt, unit record.Unit, by end, d *observe.Decided) endpoint.Verdict {
	envelope := e.config.seal(ctx, encode(a.protocol, by.answer, e.config.storedHeader(a.protocol, by.answer.Header)))
	reply, err := unit.Commit(context.WithoutCancel(ctx), e.commitRequest(a, envelope, nil, unitWait))
	switch {
	case errors.Is(err, record.ErrAborted) && !success(a.protocol, by.answer.Status):
		return e.storeAnswer(ctx, a, by.answer, small, d)
	case errors.Is(err, ErrRolledBack):
		e.giveUp(ctx, a, by.marked)
		return e.unitRefused(by.marked, reason.RolledBack, err, d)
	case err != nil:
		// The database decides when it is back: the claim is given up if the
		// transaction was rolled back, and is found completed if not. Until then the
		// request is in flight, for this client too.
		a.section.Leave(ctx)
		if by.marked {
			e.renewer.decide(a)
		} else {
			e.background.abandon(a, a.ambiguous)
		}
		return e.unitRefused(by.marked, reason.InFlight, unavailable(err), d)
	}
	a.section.Leave(ctx) // after the commit, and not with it
	e.renewer.decide(a)
	if reply.State == record.StateGranted {
		d.Outcome = observe.DecidedStored
		return endpoint.Verdict{}
	}
	return e.superseded(a, reply, d)
}

// giveUp gives up the claim of an attempt whose transaction was rolled back. A marked
// effect may have happened elsewhere: then the claim is left to the end of its lease,
// and the outcome is unknown.
func (e *Engine) giveUp(ctx context.Context, a *attempt, marked bool) {
	if marked {
		e.letGo(ctx, a)
		return
	}
	e.abandon(ctx, a, a.section.Leave)
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
