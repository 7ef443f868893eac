package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/reason"
)

// unitWait bounds the end of a [Unit]. Once the commit has been sent, there is nothing
// better to do than to wait for its outcome.
const unitWait = 10 * time.Second

// Unit is a transaction of the database that keeps the records. A handler makes its
// effects in it, and the engine ends it: the effects and the answer are stored
// together, or neither is. Package core/pgstore has the Unit for PostgreSQL.
//
// The engine calls one of the two methods, once, after the handler has ended.
type Unit interface {
	// Commit stores the response in the record, as [Store.Commit] does, and commits
	// the transaction. req has no Release. If the record is another token's, Commit
	// rolls back, and the reply tells what there is.
	//
	// After an error that matches [ErrRolledBack] the transaction has had no effect
	// and will have none. After any other error its outcome is not known. Then it
	// must hold, until its outcome is decided, a lock of the database that makes
	// [Store.Claim] and [Store.Abandon] of the record wait: the engine abandons the
	// claim, and that must have no effect if the transaction was committed.
	//
	// Of ctx Commit uses only the values.
	Commit(ctx context.Context, req record.CommitRequest) (record.CommitReply, error)

	// Rollback ends the transaction without any effect. Of ctx it uses only the
	// values.
	Rollback(ctx context.Context)
}

// Claim is what a [Unit] knows of its attempt.
type Claim struct {
	// Store is the store of the engine.
	Store Store
	// ID and Token are those of the claim; see [record.ClaimRequest].
	ID, Token string
	// Lease is the lease of the claim. A transaction that has been idle for so
	// long must not keep others from what it has locked.
	Lease time.Duration
}

// ErrRolledBack says that a [Unit] was rolled back: the request has had no effect in
// the database.
var ErrRolledBack = errors.New("interlock: the transaction of the request was rolled back")

// ErrAborted says that a statement of the handler failed, so that its transaction cannot
// be committed. It matches [ErrRolledBack]. An answer that is none of success (a status
// of 400 or more, a code other than OK) is stored nevertheless: it tells of no effect.
var ErrAborted = fmt.Errorf("%w: a statement of the handler has failed", ErrRolledBack)

// errOversized is behind a refusal for an answer that is too long for its record,
// where it cannot be sent ahead of the record.
var errOversized = errors.New("interlock: the response is longer than MaxResponse, and the request has a transaction: " +
	"no response leaves before the commit, so a longer one is not possible")

// Enlist returns the [Unit] of the attempt that ctx belongs to. The first call makes it
// with begin; later calls return the same. It is for packages that connect a database
// to the engine. Handlers call the function of such a package (pgstore.Tx).
//
// The error is that of begin, and then the next call begins anew. Otherwise it matches
// [ErrNoAttempt] if ctx does not belong to an idempotent endpoint or the request has no
// record ([Optional], [FailOpen], a method without effects), and that of [MarkEffect]
// if the claim is lost or the handler has returned. Enlist is safe for concurrent use.
func Enlist(ctx context.Context, begin func(context.Context, Claim) (Unit, error)) (Unit, error) {
	a := fromContext(ctx)
	if a == nil || a.engine == nil {
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
		unit, err := begin(ctx, Claim{a.engine.store, a.id, a.token, a.engine.config.lease})
		if err != nil {
			return nil, err
		}
		a.unit = unit
	}
	return a.unit, nil
}

// live returns why the attempt can begin nothing more, or nil. The caller has a.mu.
func (a *Attempt) live() error {
	if a.ended {
		return fmt.Errorf("%w: the handler has returned", core.ErrLost)
	}
	return a.engine.renewer.lost(a)
}

// end is how the handler of an attempt ended.
type end struct {
	answer  Response
	marked  bool
	large   largeness
	lost    *core.Refusal // the claim, or a lock around the handler
	refused *core.Refusal // by a guard inside the handler, in place of its answer
}

// concludeUnit ends the transaction of an attempt whose handler has returned. It
// reports false if the transaction was rolled back and nothing else is special: the
// record is then decided as it is without a transaction.
func (e *Engine) concludeUnit(ctx context.Context, a *Attempt, unit Unit, by end, answered bool, d *observe.Decided) (Verdict, bool) {
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
	return Verdict{}, false
}

// commitUnit stores the answer and commits the transaction, both or neither.
func (e *Engine) commitUnit(ctx context.Context, a *Attempt, unit Unit, by end, d *observe.Decided) Verdict {
	envelope := e.config.seal(ctx, encode(a.protocol, by.answer, e.config.storedHeader(a.protocol, by.answer.Header)))
	reply, err := unit.Commit(context.WithoutCancel(ctx), e.commitRequest(a, envelope, nil, unitWait))
	switch {
	case errors.Is(err, ErrAborted) && !success(a.protocol, by.answer.Status):
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
		d.Outcome = DecidedStored
		return Verdict{}
	}
	return e.superseded(a, reply, d)
}

// giveUp gives up the claim of an attempt whose transaction was rolled back. A marked
// effect may have happened elsewhere: then the claim is left to the end of its lease,
// and the outcome is unknown.
func (e *Engine) giveUp(ctx context.Context, a *Attempt, marked bool) {
	if marked {
		e.letGo(ctx, a)
		return
	}
	e.abandon(ctx, a, a.section.Leave)
}

// unitRefused is the verdict for an attempt whose transaction was not committed, or is
// not known to be. The client may try again: the record tells the two apart. It may
// not if an effect elsewhere was marked.
func (e *Engine) unitRefused(marked bool, why reason.Reason, err error, d *observe.Decided) Verdict {
	refusal := e.refusal(why, err)
	d.Outcome = DecidedReleased
	if marked {
		refusal.Reason, refusal.Ran = reason.OutcomeUnknown, true
		d.Outcome = DecidedUnknown
	}
	d.Reason, d.Err = string(refusal.Reason), err
	return Verdict{Refusal: refusal}
}
