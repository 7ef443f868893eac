package idempotency

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/internal/carrier"
	"github.com/interlock-go/interlock/core/internal/ident"
	"github.com/interlock-go/interlock/core/observe"
)

// attempt is one run of a handler for a record. An adapter gets it as an
// [endpoint.Attempt]. Handlers use [MarkEffect], [Generation] and [DownstreamKey] with
// their context.
type attempt struct {
	engine *Engine   // nil: a request that was let through
	id     string    // empty: it has no key
	secret *[16]byte // for the ticket; a pointer, so that printing a context does not show it
	token  string    // of the secret

	protocol    string
	target      [3]string // method, path and query
	origin      [3]string // host, path and query
	accept      []string  // lines of Accept-Encoding; of HTTP alone
	fingerprint [32]byte
	prepared    core.Prepared // the guard's half, if there is a guard
	ticket      string        // the token that handed the claim over
	job         bool          // of TakeOver; else the attempt is a handler's
	hops        int           // how often the claim was handed over before
	generation  int64
	sent        time.Time // from when the lease counts
	ambiguous   bool      // a try of the claim may be executed later

	ctx     context.Context // of the claim: the parent of the handler's context
	cancel  context.CancelCauseFunc
	section core.Section // the section of the handler under a guard
	// releaseLock is section.Leave, for the request that carries the release along; nil: there
	// is no lock, and the request is sent alone.
	releaseLock func(context.Context)
	leaseAround *leaseAround // of a guard around the engine; nil: there is none

	// mu guards the fields below. Nothing waits for a store or a database under it: the end of
	// the handler needs it, and a goroutine that outlives the handler may wait for a long
	// time.
	mu        sync.Mutex
	ended     bool // the handler has, and what becomes of the record is being decided
	marked    bool
	ticketing ticketState
	promised  time.Duration // of ticketing == ticketPromised: the time of the ticket
	enlistment
	overflow  overflow
	stored    string             // the steps of earlier attempts, as the claim returned them
	steps     *steps             // nil: the handler has called no Step
	stepEnded bool               // the handler has ended the transaction of a step by itself
	winner    record.CommitReply // of overflow == takenOver
	broken    error              // of overflow == brokenOff: why

	inside inside
	calls  calls      // to other services
	large  sync.Once  // of TooLarge
	lease  claimLease // the watchdog's

	decided *observe.Decided // at the end
}

// overflow is what became, before the handler ended, of an answer that grew over the limit or
// broke off.
type overflow int

const (
	fits          overflow = iota // it did neither
	sentUndecided                 // sent, and the record is decided later
	sentDecided                   // sent, and the record is decided without a response
	takenOver                     // not sent, since another attempt has taken over
	withheld                      // not sent, since the lock was lost (core.CheckAnswer)
	oversized                     // not sent, since the handler's transaction is not committed
	brokenOff                     // not sent, since the handler has not finished it
)

func fromContext(ctx context.Context) *attempt {
	a, _ := carrier.Value(ctx, carrier.Attempt).(*attempt)
	return a
}

// MarkEffect says that the effect of the request is about to happen: from now on it
// may have happened. Call it just before the effect. If it returns an error, do not
// go on: another attempt may be under way, or could begin after a crash without
// knowing this one.
//
// It costs one round trip. After it no attempt carries out the request a second
// time. If the process dies, duplicates are refused ([reason.OutcomeUnknown]).
// A failure of the handler is stored and replayed. Calling MarkEffect again does
// nothing. It is safe for concurrent use. A transaction of the request (pgstore.Tx) at
// REPEATABLE READ or SERIALIZABLE must have no statement before it; see package pgstore.
//
// Its error matches [core.ErrLost] if another attempt has taken over (or the handler
// has returned), [core.ErrMaxHold] or [core.ErrClosed] if [MaxHold] or [Engine.Close]
// ended the claim, [core.ErrUnavailable] if the store did not confirm the mark, and
// [ErrNoAttempt] if ctx does not belong to an idempotent endpoint. In a request that
// was let through without a record ([Optional], [FailOpen]) it does nothing and returns
// nil.
func MarkEffect(ctx context.Context) error {
	a := fromContext(ctx)
	if a == nil {
		return ErrNoAttempt
	}
	return a.mark(ctx)
}

func (a *attempt) mark(ctx context.Context) error {
	if a.engine == nil {
		return nil
	}
	done, err := a.isMarked()
	if !done && err == nil {
		e := a.engine
		switch err = e.store.Mark(ctx, e.markRequest(a)); {
		case err == nil:
			err = a.confirmMark()
		case errors.Is(err, driver.ErrNotOwner) && a.isHandedOver():
			err = errGiven // meanwhile, and a job has taken it
		case errors.Is(err, driver.ErrNotOwner):
			e.watchdog.lose(a, core.ErrLost)
			err = errTakenOver
		default:
			err = unavailable(err)
		}
	}
	if err != nil {
		return fmt.Errorf("interlock: marking the effect: %w", err)
	}
	return nil
}

// isMarked reports whether the attempt is marked already. An error says why it cannot be.
func (a *attempt) isMarked() (bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.ticketing != ticketNone:
		return false, errGiven
	case a.marked && !a.ended:
		return true, nil
	}
	return false, a.live()
}

// isLast reports whether no attempt follows, even if this one leaves no answer: the effect may have
// happened. Without that a retry is carried out once the claim has ended.
func (a *attempt) isLast() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.marked || a.engine.config.strict || a.steps != nil && a.steps.unsettled != ""
}

// isHandedOver reports whether a job may have the claim.
func (a *attempt) isHandedOver() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ticketing == ticketGranted
}

// confirmMark notes that the store has the mark. If the handler has returned meanwhile, it was
// decided without the mark what becomes of the record: a retry may be carried out, so the
// effect must not happen.
func (a *attempt) confirmMark() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return errReturned
	}
	a.marked = true
	return nil
}

// markRequest is the request that marks the effect of an attempt.
func (e *Engine) markRequest(a *attempt) record.MarkRequest {
	c := e.config
	return record.MarkRequest{ID: a.id, Token: a.token, Lease: c.lease, Retention: c.retention, Deadline: time.Now().Add(storeWait)}
}

// Generation tells whether the request may have been begun before. 1 says that this
// is the first attempt. More than 1 says that earlier attempts fell silent and
// their leases ended. 0 says that there is no record. An attempt that failed, and
// gave the key up, is not counted.
func Generation(ctx context.Context) int64 {
	if a := fromContext(ctx); a != nil {
		return a.generation
	}
	return 0
}

// DownstreamKey derives an idempotency key for the service that has the effect (the
// bank). Pass it on: the bank can then see that
// two attempts are one request. The key depends only on the principal, the client's
// key and step. It is the same in every attempt, and shows neither of the two. A
// handler that makes several such calls gives each a different step. In a [Step] the name of
// the step comes first, so that its key needs no other.
//
// The key has the form of a UUID (version 8, RFC 9562). It is empty if the request
// has no key ([Optional]), or if ctx does not belong to an idempotent endpoint.
// Under [FailOpen] it is there.
func DownstreamKey(ctx context.Context, step ...string) string {
	a := fromContext(ctx)
	if a == nil || a.id == "" {
		return ""
	}
	if r := stepOf(ctx, a); r != nil {
		step = append([]string{r.name}, step...)
	}
	return ident.Downstream(a.id, step)
}

// Limit implements [endpoint.Attempt].
func (a *attempt) Limit() int64 { return a.engine.config.maxResponse }

// Lease implements [endpoint.Attempt].
func (a *attempt) Lease() time.Duration { return a.engine.config.lease }

// BrokenOff implements [endpoint.Attempt].
func (a *attempt) BrokenOff(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.overflow == fits {
		a.overflow, a.broken = brokenOff, fmt.Errorf("%w: %w", errBrokenOff, err)
	}
}

// Unwritten implements [endpoint.Attempt].
func (a *attempt) Unwritten() {
	a.engine.log(a.ctx, slog.LevelWarn,
		"interlock: the handler of an idempotent endpoint wrote no answer, and 200 without a body is its answer", errUnwritten)
}

// Fault implements [endpoint.Attempt].
func (a *attempt) Fault(text string, err error) { a.engine.log(a.ctx, slog.LevelError, text, err) }

// TooLarge implements [endpoint.Attempt].
func (a *attempt) TooLarge(status int) (send bool) {
	a.large.Do(func() { a.outgrown(status) })
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.overflow == sentUndecided || a.overflow == sentDecided
}

// outgrown decides what becomes of an answer that has grown over the limit.
func (a *attempt) outgrown(status int) {
	a.mu.Lock()
	switch {
	case a.overflow != fits:
	case a.unit != nil:
		a.overflow = oversized
	default:
		a.overflow = sentUndecided // for now; from here on no transaction begins
	}
	undecided, marked, given := a.overflow == sentUndecided, a.marked, a.ticketing != ticketNone
	a.mu.Unlock()
	if !undecided {
		return
	}
	over, winner := a.sending(status, marked, given)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.overflow, a.winner = over, winner
}

// sending decides whether an answer may be sent ahead of its record, and stores that it is not
// available if the answer is of a kind that is stored. The record of a request that is handed
// over, or may be at its end, is the job's.
func (a *attempt) sending(status int, marked, given bool) (over overflow, winner record.CommitReply) {
	if !a.section.BeginAnswer(success(a.protocol, status)) {
		return withheld, winner
	}
	if given || !a.engine.config.stores(classify(a.protocol, status), marked) {
		return sentUndecided, winner
	}
	// Under the lock, which is released when the handler is done.
	reply, err := a.engine.commit(a.ctx, a, nil, nil)
	if err == nil && !reply.Stored() {
		return takenOver, reply
	}
	return sentDecided, winner
}

// live returns why the attempt can begin nothing more, or nil. The caller has a.mu.
func (a *attempt) live() error {
	if a.ended {
		return errReturned
	}
	return a.engine.watchdog.lost(a)
}

// end records the end of the handler, and adds its marks to the facts. It returns its transaction.
func (a *attempt) end(f *facts) (unit record.Unit) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	f.marked, f.handed, f.overflow = a.marked, a.ticketing == ticketGranted, a.overflow
	f.stepOpen = a.steps != nil && a.steps.unsettled != ""
	return a.unit
}
