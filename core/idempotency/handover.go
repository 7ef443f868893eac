package idempotency

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/reason"
)

// maxKeep is the longest time of a ticket.
const maxKeep = 31 * 24 * time.Hour

// HandOver gives the request to a job that goes on after the handler's answer. The handler sends
// the ticket in a message, or writes it to a row, and answers 202 with Location and Retry-After.
// The job brings the ticket to [Engine.TakeOver], and its answer is the final one. Each attempt has another
// ticket: an ID or a key that is the same for two attempts must not name the message (package once:
// Along gives it an ID).
//
// The handler's answer is the interim answer: retries with the key get it, marked by
// [InterimHeader], until the final answer is stored. It is stored under the same rules as any
// answer of a handler. A handler that fails instead, or panics, takes the ticket back: unless a
// job has the claim already, the ticket has run out, and the next retry is carried out. If a job
// has it, retries are refused as in flight until the job has ended.
//
// A handler with a transaction (pgstore.Tx) begins it first and writes the ticket to a row in it. Its
// commit hands the request over: ticket, effects and interim answer are stored together, or none of
// them. A job that brings the ticket before the commit gets [ErrTicketTaken].
//
// The ticket is good for keep, which is at most 31 days: for so long no retry is carried out, also
// after a job that failed or died before MarkEffect. After it, too, the first counts: a job that
// brings the ticket, or a retry that runs the handler again, after which the ticket has run out.
// After [MarkEffect], and with [Strict], such a retry is refused ([reason.OutcomeUnknown]), and the
// ticket stays good.
//
// After HandOver the handler has no effects more: MarkEffect returns an error. A lock of the
// handler ([Under], a guard) is not the job's: core.HandOver gives it a ticket, and the message
// carries both.
//
// The error matches [ErrNoAttempt] if ctx does not belong to an idempotent endpoint, or if the
// request has no record; [core.ErrConfig] for a keep out of range, for a function of package
// once, for a second call, and if the response has been sent already; and else as MarkEffect's.
// After an error nothing was handed over: do not send a message.
func HandOver(ctx context.Context, keep time.Duration) (Ticket, error) {
	a := fromContext(ctx)
	switch {
	case a == nil:
		return Ticket{}, ErrNoAttempt
	case a.engine == nil:
		return Ticket{}, record.ErrNoRecord
	}
	t, err := a.handOver(ctx, keep)
	if err != nil {
		return Ticket{}, fmt.Errorf("interlock: handing a request over: %w", err)
	}
	return t, nil
}

var (
	errHandedOver = fmt.Errorf("%w: %w", core.ErrConfig, errors.New("the request is handed over already"))
	errNoInterim  = fmt.Errorf("%w: %w", core.ErrConfig, errors.New("the response is being sent already, and cannot be the interim answer"))
)

func (a *attempt) handOver(ctx context.Context, keep time.Duration) (Ticket, error) {
	of := ticketParts{secret: *a.secret, fingerprint: a.fingerprint, protocol: a.protocol, hops: a.hops + 1}
	_, _ = base64.RawURLEncoding.Decode(of.id[:], []byte(a.id)) // ident.Record has made it
	t := of.ticket()
	switch {
	case keep < time.Millisecond || keep > maxKeep:
		return t, fmt.Errorf("%w: a time of %v: it is from 1ms to %v", core.ErrConfig, keep, maxKeep)
	case ticketProtocols[a.protocol] == 0:
		return t, fmt.Errorf("%w: a function has no interim answer: hand a request over", core.ErrConfig)
	case of.hops > maxHops:
		return t, fmt.Errorf("%w: more than %d times", core.ErrConfig, maxHops)
	}
	for {
		begun, err := a.beginHandOver(keep)
		if err != nil {
			return t, err
		}
		if begun == nil {
			break
		}
		select {
		case <-begun:
		case <-ctx.Done():
			return t, fmt.Errorf("waiting for the transaction of the request: %w", context.Cause(ctx))
		}
	}
	if a.promise() > 0 {
		return t, nil
	}
	e := a.engine
	req := e.markRequest(a)
	req.HandOver, req.Lease, req.Retention = true, keep, req.Retention+keep
	err := e.store.Mark(ctx, req)
	if errors.Is(err, driver.ErrNotOwner) {
		e.watchdog.lose(a, core.ErrLost)
		err = errTakenOver
	} else if err != nil {
		err = unavailable(err)
	}
	return t, a.endHandOver(err)
}

// ticketState is the progress of an attempt's hand-over.
type ticketState int

const (
	ticketNone     ticketState = iota
	ticketAsked                // the store is asked
	ticketGranted              // the handler has the ticket
	ticketPromised             // the handler has it, and the commit of its transaction makes it good
)

// beginHandOver reports why the claim cannot be handed over now, or nil. If a transaction is just
// being begun, it returns a channel that is closed when it has begun.
//
// With a transaction the claim is handed over by the commit. Another connection that did it now
// would change a row that the transaction may not see any more, from REPEATABLE READ on; and after a
// crash before the commit the claim would be kept for a ticket that was rolled back.
func (a *attempt) beginHandOver(keep time.Duration) (begun <-chan struct{}, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch err := a.live(); {
	case err != nil:
		return nil, err
	case a.ticketing != ticketNone:
		return nil, errHandedOver
	case a.steps != nil && a.steps.underWay > 0:
		return nil, errStepUnderWay
	case a.steps != nil && a.steps.unsettled != "":
		return nil, errStepUnsure
	case a.overflow != fits:
		return nil, errNoInterim
	case a.unit != nil:
		a.ticketing, a.promised = ticketPromised, keep
	case a.begun != nil:
		return a.begun, nil
	default:
		a.ticketing = ticketAsked
	}
	return nil, nil
}

// promise returns for how long the commit of the transaction hands the claim over; 0: it does not.
func (a *attempt) promise() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.promised
}

// endHandOver takes the answer of the store. After an error the claim is the attempt's as before:
// no caller has the ticket, even if the store knows it. If the handler has returned meanwhile, it
// was decided without the ticket what becomes of the record.
func (a *attempt) endHandOver(err error) error {
	a.mu.Lock()
	if err == nil && a.ended {
		err = errReturned
	}
	a.ticketing = ticketNone
	if err == nil {
		a.ticketing = ticketGranted
	}
	a.mu.Unlock()
	if err == nil {
		// From here on a job may take the claim: its loss is no loss for this handler.
		a.engine.watchdog.decide(a)
	}
	return err
}

// TakeOver goes on with a request that was handed over ([HandOver]). It runs job as a second part
// of the handler, on the caller's goroutine. The context of job is like a handler's:
// [MarkEffect], [DownstreamKey], the keys of calls to other services, pgstore.Tx and [Generation]
// work with it, the claim is renewed, and the context ends if the claim is lost, and after
// [MaxHold]. It has the values of ctx, and does not end with it. e is an engine on the same store;
// its options count, except [Under]: job takes its lock itself. If the message waited for a lock before
// TakeOver, each delivery of it would occupy a worker until the lock is free.
//
// The answer of job is stored as a handler's, and retries with the key get it from then on. For a
// request over HTTP it has status (0 is 200), header and body. For gRPC and Connect it has the
// code, and the bytes of the message if the code is OK, else the bytes of a google.rpc.Status. An
// answer that is not stored (503, 409, ...) and an error of job give the claim back to the
// ticket, for the rest of the ticket's own time; after MarkEffect an error is stored as a status of 500,
// or INTERNAL. A panic passes through, and counts as an error. job may call HandOver for a further job;
// its answer is then the interim one. If it fails after that, the ticket that it took is good again,
// and the one that it made has run out, unless the further job has the claim already.
//
// A ticket of [Engine.Abandoned] takes the request as a retry would.
//
// A ticket has one taker at a time. It is brought again when its message is delivered again:
// then TakeOver runs job if the last job gave up, or if its [Lease] has ended (it died) before
// MarkEffect; Generation is one greater then. After the time of the ticket a claim that lapsed is also free
// for a retry with the key, which runs the handler again, and the ticket has run out.
//
// If job did not run, the error matches [ErrTicketTaken], [ErrTicketFinished], [ErrTicketRanOut],
// [ErrTicketMalformed] (the zero Ticket), [ErrOutcomeUnknown] (a job died after MarkEffect, or the
// engine is [Strict]), [core.ErrClosed] or [core.ErrUnavailable]. If it ran, TakeOver returns the
// error of job, or an error that says why its answer is not stored: [ErrTicketFinished] if another
// attempt has answered, [core.ErrUnavailable] if the engine is still storing it, [core.ErrLost],
// [core.ErrMaxHold] or [ErrRolledBack]. After all of these the message can be delivered again.
func (e *Engine) TakeOver(ctx context.Context, t Ticket, job func(ctx context.Context) (endpoint.Response, error)) error {
	if t == (Ticket{}) {
		return fmt.Errorf("%w: it is empty", ErrTicketMalformed)
	}
	if !e.drain.admit() {
		return fmt.Errorf("interlock: taking a request over: %w", core.ErrClosed)
	}
	defer e.drain.done()
	begin, of := time.Now(), t.parts()
	a := &attempt{
		engine: e, id: of.record(), protocol: of.protocol, fingerprint: of.fingerprint,
		job: true, hops: of.hops, decided: &observe.Decided{},
	}
	if of.secret != ([16]byte{}) {
		a.ticket = tokenOf(of.secret)
	} // else it is a ticket of Abandoned, and the claim is claimed as by a retry
	a.secret, a.token = newToken()
	reply, err := e.claim(ctx, a)
	switch {
	case err != nil:
		return fmt.Errorf("interlock: taking a request over: %w", e.refuse(ctx, begin, e.refusal(reasonOf(ctx, err), err)).Refusal.Err)
	case reply.State != record.StateGranted:
		reply.Response = "" // none is needed
		return e.untaken(ctx, a, reply, begin)
	}
	if a.ticket == "" && a.stored == "" { // nothing remains of the request
		e.abandon(ctx, a)
		return e.untaken(ctx, a, record.ClaimReply{State: record.StateExpired}, begin)
	}
	var failure error
	verdict := e.run(ctx, endpoint.Handler{Run: func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
		var answer endpoint.Response
		answer, failure = job(ctx)
		if failure == nil {
			failure = complete(a.protocol, &answer)
		}
		if failure != nil {
			return panicAnswer(a.protocol), false
		}
		return answer, true
	}}, a, begin)
	e.logRefusal(ctx, verdict.Refusal)
	return a.outcome(verdict, failure)
}

// complete completes the answer of a job, and returns [core.ErrConfig] for a status that is
// none.
func complete(protocol string, answer *endpoint.Response) error {
	if protocol == endpoint.HTTP && answer.Status == 0 {
		answer.Status = 200
	}
	return checkStatus(protocol, answer.Status)
}

// untaken is the error for a ticket that does not give the claim.
func (e *Engine) untaken(ctx context.Context, a *attempt, reply record.ClaimReply, begin time.Time) error {
	why, err := reason.KeyExpired, ErrTicketRanOut
	switch reply.State {
	case record.StateInFlight:
		why, err = reason.InFlight, fmt.Errorf("%w; its lease ends in %v", ErrTicketTaken, reply.Left)
	case record.StateCompleted, record.StateUnavailable:
		e.replay(ctx, a, record.ClaimReply{State: record.StateUnavailable}, begin)
		return ErrTicketFinished
	case record.StateUnknown:
		why, err = reason.OutcomeUnknown, ErrOutcomeUnknown
		e.logUnknown(ctx, a.id, err, true)
	}
	return e.refuse(ctx, begin, e.refusal(why, err)).Refusal.Err
}

// outcome is the error of [Engine.TakeOver] for a job that has run.
func (a *attempt) outcome(v endpoint.Verdict, failure error) error {
	err := a.decided.Err
	switch {
	case v.Replay != nil:
		err = fmt.Errorf("%w, by another attempt", ErrTicketFinished)
	case v.Refusal != nil:
		err = v.Refusal.Err
	}
	switch {
	case err == nil && failure == nil && a.decided.Outcome == observe.DecidedStored:
		return nil
	case err == nil && failure == nil:
		err = errNotFinal
	case err == nil:
		return failure
	case failure != nil:
		return fmt.Errorf("%w; the job returned: %w", err, failure)
	}
	return fmt.Errorf("interlock: the answer of a job is not stored: %w", err)
}

var errNotFinal = errors.New("its status asks for the request again, and the claim is given up")
