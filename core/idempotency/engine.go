package idempotency

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/ident"
	"github.com/interlock-go/interlock/core/internal/logs"
)

// storeWait bounds how long a request waits for one answer of the store. What has
// to be done all the same goes on in the background.
const storeWait = 2 * time.Second

// pollWait is the pause between looks at a record whose completion may not be
// announced.
const pollWait = time.Second

// Engine makes endpoints idempotent. [New] makes one; the zero value is not usable.
// Use one for a process and store, and [Engine.With] for endpoints that differ. It
// is immutable and safe for concurrent use. Call [Engine.Close] at the end.
type Engine struct {
	config *config
	keeper *keeper
	tokens *tokens
	lines  logs.Throttle

	nesting nesting
}

// tokens makes claim tokens: 128 random bits for the process, and a number.
type tokens struct {
	process string
	seq     atomic.Uint64
}

func (t *tokens) next() string {
	var room [53]byte // 32 digits, a colon and 20 digits
	b := append(room[:0], t.process...)
	b = append(b, ':')
	return string(strconv.AppendUint(b, t.seq.Add(1), 10))
}

// New makes an [Engine] on a store. It returns an error that matches
// [core.ErrConfig] for a nil store, for an option that cannot work, or if neither
// [Scope] nor [Global] is given.
//
// Services may share one Redis, and a gateway may hand the client's key on to them.
// Then give the store of each service a prefix of its own (redisstore.Prefix). With
// one prefix for both, the gateway's record has the key, and the service refuses
// the gateway's request as another request with a used key
// ([core.ReasonKeyReused]). The same holds for a handler that calls another
// idempotent endpoint with the key of its own request, in this process or
// elsewhere. A key of [DownstreamKey] is another key and needs no prefix.
func New(store Store, opts ...Option) (*Engine, error) {
	if store == nil {
		return nil, fmt.Errorf("%w: store is nil; redisstore.New makes one", core.ErrConfig)
	}
	c, err := defaults().with(opts)
	if err != nil {
		return nil, err
	}
	return &Engine{
		config: &c,
		keeper: newKeeper(store, c.backlog),
		tokens: &tokens{process: ident.New()},
	}, nil
}

// With returns an [Engine] for an endpoint that differs in some options. It shares
// everything else with e, and is closed with e. It panics on a bad option, as
// [core.Serialize] does, because it belongs to the registration of routes.
func (e *Engine) With(opts ...Option) *Engine {
	c, err := e.config.with(opts)
	if err != nil {
		panic(err)
	}
	return &Engine{config: &c, keeper: e.keeper, tokens: e.tokens}
}

// MaxResponse returns the length of the longest answer that is stored, in bytes.
func (e *Engine) MaxResponse() int64 { return e.config.maxResponse }

// Pending returns how many answers and releases the store has not confirmed yet.
// The engine tries them again in the background.
func (e *Engine) Pending() int { return e.keeper.pending() }

// Close drains the engine. It refuses new requests ([core.ReasonClosing]). Requests
// under way go on, and so does what is still to be stored, until all is done or ctx
// ends. If ctx ends first, the contexts of handlers that still run end with cause
// [core.ErrClosed], their claims end with their leases, and Close returns the cause
// of ctx. Close does not close the store.
//
// Call Close after the server's Shutdown, which does not wait for handlers behind
// an http.TimeoutHandler. Call it before [core.Locker.Close] and the Close of the
// store: if an answer cannot be stored, a retry makes the payment again.
//
// The engine gives up a claim that was not answered, and may yet be granted, again
// and again for a lease. Close gives it up once more, and does not wait: if the
// claim is granted even later, its key stays in flight until the lease ends. Under
// [Strict], where it would be an unknown outcome, Close waits for up to a lease.
func (e *Engine) Close(ctx context.Context) error { return e.keeper.close(ctx) }

// Forget deletes the record of a key, whatever its state, so that the next request
// with the key is carried out. scope is the principal, key the key without quotes.
// If the outcome of a request was unknown, and an operator found it out,
// [Engine.Resolve] is safer. Its errors are those of the store.
func (e *Engine) Forget(ctx context.Context, scope, key string) error {
	if err := e.keeper.store.Forget(ctx, recordID(scope, key)); err != nil {
		return fmt.Errorf("interlock: forgetting a record: %w", err)
	}
	return nil
}

// Do deals with a request. It reads the key, claims its record and lets h run the
// handler, or finds out what else the client gets. An adapter calls Do once for
// each request and obeys the [Verdict].
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
func (e *Engine) Do(ctx context.Context, call Call, h Handler) (v Verdict) {
	method, path, query := call.Target()
	if _, matched := call.Route(); !matched || passes(call.Protocol(), method) {
		return e.pass(ctx, call, h, &Attempt{})
	}
	begin := time.Now()
	key, err := ParseKey(call.Key())
	if errors.Is(err, ErrKeyMissing) && e.config.optional {
		return e.pass(ctx, call, h, &Attempt{})
	}
	var outer *Attempt
	if err == nil {
		if outer = e.enclosing(ctx, call, key); outer != nil && e.sameRequest(outer, call) {
			e.warnTwice(ctx)
			return e.pass(ctx, call, h, outer)
		}
	}
	if !e.keeper.enter() {
		return e.refuse(ctx, begin, core.ReasonClosing, core.ErrClosed)
	}
	defer e.keeper.leave()
	passed := false
	defer func() {
		if !passed { // else the guards that it passed have reported
			core.ReportOutcome(ctx, v.outcome())
		}
	}()
	switch {
	case errors.Is(err, ErrKeyMissing):
		return e.refuse(ctx, begin, core.ReasonKeyMissing, err)
	case err != nil:
		return e.refuse(ctx, begin, core.ReasonKeyMalformed, err)
	}
	scope, err := e.scope(ctx, call)
	if err != nil {
		return e.refuse(ctx, begin, e.unscoped(ctx, err), err)
	}
	body, err := call.Body(e.config.maxRequest)
	if err != nil {
		return e.rejected(ctx, begin, err)
	}
	a := &Attempt{
		engine: e, id: recordID(scope, key), token: e.tokens.next(), protocol: call.Protocol(), target: [3]string{method, path, query},
	}
	if g := e.config.guard; g != nil {
		// Its keys tell requests apart, and nothing is claimed if there are none.
		rule, refusal := g.Prepare(ctx, call)
		if refusal != nil {
			return e.refused(ctx, begin, refusal)
		}
		a.rule = rule
	}
	if a.print, a.print1, err = e.config.prints(ctx, call, a.rule.Keys(), body); err != nil {
		return e.rejected(ctx, begin, err)
	}
	reply, err := e.claim(ctx, a)
	if err != nil {
		reason := reasonOf(ctx, err)
		if e.config.failOpen && reason == core.ReasonNoRecord && !errors.Is(err, ErrDamaged) && ctx.Err() == nil {
			e.bypassed(ctx, err)
			passed = true
			return e.pass(ctx, call, h, &Attempt{id: a.id})
		}
		return e.refuse(ctx, begin, reason, err)
	}
	if reply.State == StateGranted {
		return e.run(ctx, h, a, begin)
	}
	e.warnShared(ctx, outer, reply.State)
	return e.answer(ctx, a, reply.State, reply.Response, begin, false)
}

// unavailable makes an error of a store one that says so.
func unavailable(err error) error {
	if errors.Is(err, core.ErrUnavailable) || errors.Is(err, ErrDamaged) {
		return err
	}
	return fmt.Errorf("%w: %w", core.ErrUnavailable, err)
}

// claim asks for the record until it is granted, or it is clear that it will not
// be. A caller that leaves before leaves no claim behind.
func (e *Engine) claim(ctx context.Context, a *Attempt) (reply ClaimReply, err error) {
	c, k := e.config, e.keeper
	if ctx.Err() != nil { // or a claim would have to be given up again
		return reply, fmt.Errorf("interlock: claiming a record: %w", context.Cause(ctx))
	}
	wait := replayWait{engine: e, id: a.id, over: time.Now().Add(c.wait)}
	defer wait.end()
	for {
		sent := time.Now()
		reply, err = k.store.Claim(ctx, ClaimRequest{
			ID: a.id, Token: a.token, Fingerprint: a.print, Fingerprint1: a.print1,
			Lease: c.lease, Retention: c.retention, Strict: c.strict, Tombstone: c.tombstone > 0,
			Waits: c.wait > 0, Deadline: sent.Add(storeWait), Late: a.late,
		})
		if errors.Is(err, driver.ErrPending) {
			if wait.knows(ctx) {
				return ClaimReply{State: StateInFlight}, nil
			}
			if ctx.Err() != nil {
				return reply, fmt.Errorf("interlock: claiming a record: %w", context.Cause(ctx))
			}
			return reply, fmt.Errorf("%w: no answer in time", core.ErrUnavailable)
		}
		if !a.ambiguous {
			// Once a try may be executed at any time, a claim that is found to be
			// ours may have been granted to that one: its lease counts from there.
			a.sent = reply.Sent
		}
		a.ambiguous = a.ambiguous || reply.Ambiguous
		now := time.Now()
		switch {
		case err != nil:
			err = unavailable(err)
			if wait.knows(ctx) && !errors.Is(err, ErrDamaged) && reasonOf(ctx, err) == core.ReasonNoRecord {
				reply, err = ClaimReply{State: StateInFlight}, nil
			}
		case reply.State == StateGranted:
			a.generation = reply.Generation
			if now.Before(a.sent.Add(c.lease - clock.Drift(c.lease))) {
				return reply, nil
			}
			a.ambiguous = true // it is ours, and has to be given back
			err = fmt.Errorf("%w: a claim came after the end of its lease", core.ErrUnavailable)
		case reply.State == StateInFlight:
			var again bool
			if again, err = wait.sleep(ctx, reply, sent); again {
				continue
			}
		}
		if a.ambiguous {
			e.keeper.discard(a, true)
		}
		return reply, err
	}
}

// late takes the outcome of a claim whose caller has left.
func (a *Attempt) late(reply ClaimReply, _ error) {
	if a.ambiguous || reply.Ambiguous || reply.State == StateGranted {
		a.engine.keeper.discard(a, a.ambiguous || reply.Ambiguous)
	}
}

// run runs the handler for a claim that was granted.
func (e *Engine) run(ctx context.Context, h Handler, a *Attempt, begin time.Time) Verdict {
	inner, cancel := context.WithCancelCause(context.WithValue(context.WithoutCancel(ctx), attemptKey{}, a))
	inner = core.WithOutcome(inner, a.inside.report)
	a.ctx, a.cancel = inner, cancel
	// Whatever happens, the handler's context ends with it.
	defer cancel(core.ErrReleased)
	if !e.keeper.start(a) {
		_ = e.keeper.store.Abandon(inner, AbandonRequest{ID: a.id, Token: a.token, Deadline: time.Now().Add(storeWait)})
		return e.refuse(ctx, begin, core.ReasonClosing, core.ErrClosed)
	}
	defer e.keeper.stop(a)
	section, refusal := e.lockBefore(ctx, inner, a)
	if refusal != nil {
		return e.refused(ctx, begin, refusal)
	}
	a.section = section
	a.outer = watchOuter(ctx, cancel)
	defer a.outer.unwatch()
	waited := time.Since(begin)
	decided := core.Decided{Outcome: core.DecidedUnknown, Generation: a.generation, Waited: waited}
	defer func() { e.decide(ctx, decided) }()
	ran := false
	defer func() {
		if !ran { // a panic, or runtime.Goexit
			e.panicked(inner, a, section, &decided)
		}
	}()
	answer, answered := h.Run(section.Context(), a)
	ran = true
	return e.settle(inner, a, section, answer, answered, &decided)
}

// lock enters the guard's section, if there is a guard, for a handler that is to
// run under inner. While it waits, the client counts: when ctx ends, its place is
// freed. Once it is inside, the client does not count any more.
func (e *Engine) lock(ctx, inner context.Context, a *Attempt) (core.Section, *core.Refusal) {
	g := e.config.guard
	if g == nil {
		return core.NewSection(inner), nil
	}
	inside, cancel := context.WithCancelCause(inner)
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	section, refusal := a.rule.Enter(inside)
	gone := !stop()
	if refusal == nil && !gone {
		return section, nil // inside ends with inner
	}
	if refusal == nil {
		// It went away while the lock was granted: the context of the lease has
		// ended, or is about to.
		section.Leave(inside)
		refusal = &core.Refusal{Rule: g.Name(), Err: fmt.Errorf("interlock: waiting for the lock: %w", context.Cause(ctx))}
		refusal.Reason = core.ReasonOf(ctx, refusal.Err)
	}
	cancel(core.ErrReleased)
	switch refusal.Reason {
	case core.ReasonCanceled:
		// The wait was ended by our own context; why, the request's knows.
		refusal.Reason = core.ReasonOf(ctx, refusal.Err)
	case core.ReasonLost, core.ReasonMaxHold:
		// The claim, not the lock: it was lost while the lock was waited for.
		refusal.Reason = core.ReasonNoRecord
	}
	return section, refusal
}

// settle decides what becomes of the record, and what the client gets.
func (e *Engine) settle(
	ctx context.Context, a *Attempt, section core.Section, answer Response, answered bool, d *core.Decided,
) Verdict {
	// A rule that checks answers may hold a success back (core.CheckAnswer).
	answered = answered && section.BeginAnswer(success(a.protocol, answer.Status))
	// Read before the lock is released.
	lost := section.Lost()
	cause := e.keeper.lost(a)
	if cause == nil {
		cause = a.outer.lost()
	}
	if lost == nil && cause != nil {
		// Whatever the cause (the engine was closed, say): the handler ran.
		lost = &core.Refusal{Reason: core.ReasonLost, Ran: true, Rule: e.config.name, Err: cause}
		if errors.Is(cause, core.ErrMaxHold) {
			lost.Reason = core.ReasonMaxHold
		}
	}
	marked, large := a.end()
	k := classify(a.protocol, answer.Status)
	refused := a.inside.answer(!answered || !success(a.protocol, answer.Status))
	switch {
	case large == superseded:
		section.Leave(ctx)
		e.keeper.finish(a)
		return e.superseded(a, a.winner, d)
	case large == stored:
		section.Leave(ctx)
		d.Outcome = core.DecidedStored
		if e.keeper.finish(a) {
			d.Outcome = core.DecidedPending
		}
		return Verdict{}
	case lost != nil && (large == withheld || !answered && large == small):
		// The handler gave up since its context ended, or for reasons of its
		// own: what it did is not known. The claim is left to lapse.
		section.Leave(ctx)
		e.keeper.finish(a)
		d.Reason, d.Err = lost.Reason, lost.Err
		return Verdict{Refusal: lost}
	case refused != nil && large == small:
		e.notOurs(ctx, a, section, refused, marked, d)
		return Verdict{inside: refused}
	case e.config.stores(k, marked):
		var envelope []byte
		if large == small && int64(len(answer.Body)) <= e.config.maxResponse {
			envelope = e.config.seal(ctx, encode(a.protocol, answer, e.config.keeper(a.protocol, answer.Header)))
		}
		reply, err := e.commit(ctx, a, envelope, section.Leave)
		switch {
		case err != nil:
			d.Outcome, d.Err = core.DecidedPending, err
		case reply.State != StateGranted:
			if large != small {
				return Verdict{} // it has left already, when nothing was to be stored
			}
			return e.superseded(a, reply, d)
		default:
			d.Outcome = core.DecidedStored
		}
		return Verdict{}
	case lost != nil:
		section.Leave(ctx)
		e.keeper.finish(a)
		d.Err = lost.Err
		return Verdict{}
	}
	e.abandon(ctx, a, section.Leave)
	d.Outcome = core.DecidedReleased
	return Verdict{}
}

// panicked settles the record of a handler that did not return.
func (e *Engine) panicked(ctx context.Context, a *Attempt, section core.Section, d *core.Decided) {
	lost := section.Lost() != nil || e.keeper.lost(a) != nil || a.outer.lost() != nil
	marked, large := a.end()
	refused := a.inside.answer(true)
	lost = lost || refused != nil && refused.Ran
	switch {
	case large == stored || large == superseded:
		section.Leave(ctx)
		e.keeper.finish(a)
		d.Outcome = core.DecidedStored
	case refused != nil && !refused.Ran && !marked && large == small:
		e.notOurs(ctx, a, section, refused, marked, d)
	case e.config.stores(failed, marked):
		var envelope []byte
		if large == small {
			answer := panicked(a.protocol)
			envelope = e.config.seal(ctx, encode(a.protocol, answer, func(string) bool { return true }))
		}
		d.Outcome = core.DecidedStored
		if reply, err := e.commit(ctx, a, envelope, section.Leave); err != nil {
			d.Outcome, d.Err = core.DecidedPending, err
		} else if reply.State != StateGranted {
			d.Outcome = core.DecidedUnknown
		}
	case lost:
		section.Leave(ctx)
		e.keeper.finish(a)
	default:
		e.abandon(ctx, a, section.Leave)
		d.Outcome = core.DecidedReleased
	}
}

// commit stores an answer, or with a nil envelope that there is none to be had.
// If the store does not confirm it, that goes on in the background: the effect
// has happened, so the claim is never given up. Of ctx only the values are used.
func (e *Engine) commit(ctx context.Context, a *Attempt, envelope []byte, release func(context.Context)) (CommitReply, error) {
	c := e.config
	req := CommitRequest{
		ID: a.id, Token: a.token, Fingerprint: a.print, Fingerprint1: a.print1, Generation: a.generation, Response: envelope,
		Retention: c.retention, Tombstone: c.tombstone, Deadline: time.Now().Add(storeWait), Release: release,
	}
	reply, err := e.keeper.store.Commit(context.WithoutCancel(ctx), req)
	if err == nil {
		e.keeper.finish(a)
		return reply, nil
	}
	req.Release = nil // it was called
	e.keeper.insist(a, req)
	return reply, unavailable(err)
}

// abandon gives the claim up, in the background if it must be. Of ctx only the
// values are used.
func (e *Engine) abandon(ctx context.Context, a *Attempt, release func(context.Context)) {
	err := e.keeper.store.Abandon(context.WithoutCancel(ctx), AbandonRequest{
		ID: a.id, Token: a.token, Deadline: time.Now().Add(storeWait), Release: release,
	})
	if a.ambiguous || err != nil && !errors.Is(err, core.ErrNotOwner) {
		e.keeper.discard(a, a.ambiguous)
		return
	}
	e.keeper.finish(a)
}

// superseded is the answer for a request whose handler ran, and whose record is
// another attempt's by now: its response, since there is to be one for a key.
func (e *Engine) superseded(a *Attempt, winner CommitReply, d *core.Decided) Verdict {
	v, err := e.verdict(a, winner.State, winner.Response, true)
	if v.Refusal != nil {
		d.Reason = v.Refusal.Reason
	} else {
		d.Outcome = core.DecidedReplayed
	}
	d.Err = err
	return v
}

// answer is the answer for a request whose handler does not run.
func (e *Engine) answer(ctx context.Context, a *Attempt, state State, response string, begin time.Time, ran bool) Verdict {
	v, err := e.verdict(a, state, response, ran)
	if v.Refusal != nil {
		return e.refused(ctx, begin, v.Refusal)
	}
	e.decide(ctx, core.Decided{Outcome: core.DecidedReplayed, Waited: time.Since(begin), Err: err})
	return v
}

// verdict turns the state of a record into what its duplicates get.
func (e *Engine) verdict(a *Attempt, state State, response string, ran bool) (Verdict, error) {
	refusal := &core.Refusal{Ran: ran, Rule: e.config.name}
	switch state {
	case StateCompleted:
		r, err := e.config.open(a.protocol, response)
		if err == nil {
			return Verdict{Replay: r}, nil
		}
		refusal.Reason, refusal.Err = core.ReasonNoRecord, err
	case StateInFlight:
		refusal.Reason, refusal.Err = core.ReasonInFlight, errInFlight
	case StateUnavailable:
		refusal.Reason, refusal.Err = core.ReasonResponseUnavailable, errNoResponse
	case StateMismatch:
		refusal.Reason, refusal.Err = core.ReasonKeyReused, errMismatch
		if ran { // the key was given up and used anew: our answer is lost, not wrong
			refusal.Reason = core.ReasonOutcomeUnknown
		}
	case StateExpired:
		refusal.Reason, refusal.Err = core.ReasonKeyExpired, errExpired
	case StateUnknown:
		refusal.Reason, refusal.Err = core.ReasonOutcomeUnknown, errUnknown
	default:
		refusal.Reason, refusal.Err = core.ReasonNoRecord, fmt.Errorf("%w: state %d", ErrDamaged, state)
	}
	return Verdict{Refusal: refusal}, refusal.Err
}

// What stands behind a refusal, for logs.
var (
	errInFlight   = errors.New("interlock: a request with the key is in flight")
	errNoResponse = errors.New("interlock: the response for the key was not stored")
	errMismatch   = errors.New("interlock: the key was used for another request")
	errExpired    = errors.New("interlock: the key was used before its record expired")
	errUnknown    = errors.New("interlock: the outcome of a request with the key is unknown")
)

// pass runs the handler without a record, under the lock if there is a guard.
func (e *Engine) pass(ctx context.Context, call Call, h Handler, a *Attempt) Verdict {
	inner := ctx
	if a != fromContext(ctx) {
		inner = context.WithValue(ctx, attemptKey{}, a)
	}
	if g := e.config.guard; g != nil {
		return Verdict{Refusal: g.Do(inner, call, h.Pass)}
	}
	h.Pass(inner)
	return Verdict{}
}

func (e *Engine) refuse(ctx context.Context, begin time.Time, reason core.Reason, err error) Verdict {
	return e.refused(ctx, begin, &core.Refusal{Reason: reason, Rule: e.config.name, Err: err})
}

func (e *Engine) refused(ctx context.Context, begin time.Time, r *core.Refusal) Verdict {
	e.decide(ctx, core.Decided{Outcome: core.DecidedRefused, Reason: r.Reason, Waited: time.Since(begin), Err: r.Err})
	return Verdict{Refusal: r}
}

// decide tells the observer.
func (e *Engine) decide(ctx context.Context, d core.Decided) {
	if e.config.observer == nil {
		return
	}
	_, o := e.config.observer.Start(ctx, core.Operation{Rule: e.config.name, Unlocked: true})
	if o.Decided != nil {
		o.Decided(d)
	}
}

// bypassed reports that a handler runs without a record.
func (e *Engine) bypassed(ctx context.Context, err error) {
	if e.config.observer != nil {
		_, o := e.config.observer.Start(ctx, core.Operation{Rule: e.config.name, Unlocked: true})
		if o.Bypassed != nil {
			o.Bypassed(err)
		}
	}
	e.log(ctx, slog.LevelWarn, "interlock: the store of idempotency records is unavailable and the endpoint fails open: "+
		"handlers run without their record", err)
}

// log writes a line about a request, at most once a second for an endpoint: when
// every request is worth a line, the lines would be a second outage.
func (e *Engine) log(ctx context.Context, level slog.Level, message string, err error) {
	if n := e.lines.Count(time.Now()); n > 0 {
		slog.Log(ctx, level, message, "rule", e.config.name, "requests", n, "error", err)
	}
}
