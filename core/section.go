package core

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/internal/carrier"
	"github.com/interlock-go/interlock/core/internal/requests"
	"github.com/interlock-go/interlock/core/reason"
)

// Do runs a request under the guard. It makes the keys, takes their locks, calls
// next with the context of the lease, and releases the locks when next has returned. It
// releases them however next ends: a panic (http.ErrAbortHandler too) and
// [runtime.Goexit] pass through untouched, after the release ([AnswerFirst]: while it is
// on its way). A request without a matched route goes through without a lock. An adapter needs only this method;
// [Guard.Enter] is for callers that need to do something between the end of the
// handler and the release.
//
// Do calls next at most once, on the goroutine of its caller. next reports whether
// the client has been answered in a way that cannot be taken back: a header is
// written, or an RPC succeeded.
//
// Do returns nil if the answer is the handler's own. Else it returns what to answer
// instead: next was not called, or (if [Refusal.Ran] is true) the lease was lost, or a newer
// request had come ([Newest]), before the handler had answered. Only the [observe.Observer] and [OnLost] are called for
// a loss after the answer, and only the Observer for an error of the release.
func (g *Guard) Do(ctx context.Context, req Request, next func(ctx context.Context) (answered bool)) (refusal *Refusal) {
	var report *outcomeReport // nil: no middleware around asks
	if f, _ := carrier.Value(ctx, carrier.Reporter).(func(*Refusal)); f != nil {
		report = &outcomeReport{report: f}
	}
	var section Section
	entered, returned := false, false
	// Deferred, since next, or a function that runs before it, may not return. The error of
	// the release is the observer's: the client's request has been carried out.
	defer func() {
		switch {
		case returned || report == nil:
		case entered: // a panic, or runtime.Goexit
			report.ran(section.Lost())
		default:
			report.report(&Refusal{Reason: reason.Internal, Rule: g.config.name})
		}
		section.Leave(ctx)
	}()
	prepared, refusal := g.Prepare(ctx, req)
	if refusal == nil {
		section, refusal = prepared.Enter(ctx)
	}
	if entered = refusal == nil; !entered {
		returned = true
		if report != nil {
			report.report(refusal)
		}
		return refusal
	}
	inner := section.ctx
	if report != nil {
		inner = report.handler(inner)
	}
	answered := next(inner)
	returned = true
	switch {
	case !answered:
		refusal = section.Lost()
	case section.request != nil:
		section.request.answered.Store(true) // a loss has been reported already, and nothing can be taken back
	}
	if refusal != nil {
		g.logRefusal(ctx, refusal, "")
	}
	if report != nil {
		report.ran(refusal)
	}
	return refusal
}

// Enter is the first half of [Guard.Do], for callers that need to do something
// between the end of the handler and the release. It makes the keys and takes their
// locks, as Do does, and calls no handler. If Enter returns no [Refusal], the
// caller runs the handler under [Section.Context] and must call [Section.Leave],
// however the handler ends.
func (g *Guard) Enter(ctx context.Context, req Request) (Section, *Refusal) {
	prepared, refusal := g.Prepare(ctx, req)
	if refusal != nil {
		return Section{}, refusal
	}
	return prepared.Enter(ctx)
}

// Prepared is a request with its keys, before its locks are taken. The zero value
// belongs to no guard: it has no keys, and takes no lock.
type Prepared struct {
	guard *Guard // nil: the request runs without a lock
	req   Request
	route string
	keys  []string
}

// Prepare is the first half of [Guard.Enter]: it makes the keys of a request, for a
// caller that must know the keys before it takes the locks. It reads the body if
// the guard has [ReadBody]. A request without a matched route gives the zero
// Prepared.
func (g *Guard) Prepare(ctx context.Context, req Request) (Prepared, *Refusal) {
	route, matched := req.Route()
	if !matched {
		return Prepared{}, nil
	}
	keys, err := g.Keys(ctx, req)
	if err != nil {
		return Prepared{}, g.rejected(ctx, req, err)
	}
	if c := g.config.guard; c.readBody {
		if _, err := req.Body(c.bodyLimit); err != nil {
			return Prepared{}, g.rejected(ctx, req, err)
		}
	}
	return Prepared{g, req, route, keys}, nil
}

// Keys returns the keys. The caller may change the slice.
func (p Prepared) Keys() []string { return slices.Clone(p.keys) }

// Keys returns the keys that the guard locks for a request: the keys of its templates
// in their order, then the keys of its [KeyFunc]. It takes no lock. [ReasonOf] gives
// the reason for its error.
func (g *Guard) Keys(ctx context.Context, req Request) ([]string, error) {
	keys := make([]string, 0, len(g.templates))
	for _, t := range g.templates {
		key, err := t.key(ctx, req)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	if f := g.config.guard.keyFunc; f != nil {
		made, err := f(ctx, requests.Copy(req))
		switch {
		case err != nil:
			return nil, fmt.Errorf("interlock: making the key: %w", err)
		case len(made) == 0:
			return nil, fmt.Errorf("%w: KeyFunc returned none", ErrKey)
		}
		for _, key := range made {
			if err := checkKey(key); err != nil {
				return nil, fmt.Errorf("%w, from KeyFunc", err)
			}
		}
		keys = append(keys, made...)
	}
	return keys, nil
}

// Enter is the second half of [Guard.Enter]: it takes the locks. Call it at most
// once. The zero Prepared takes no lock: its handler runs under ctx.
func (p Prepared) Enter(ctx context.Context) (Section, *Refusal) {
	g := p.guard
	if g == nil {
		return Section{ctx: ctx}, nil
	}
	ctx, held := withHeld(ctx, p.req.Header(HeldHeader))
	switch {
	case g.relay:
		return g.passOn(ctx, p)
	case g.fence != nil:
		return g.claim(ctx, p)
	}
	c := g.configFor(p.req)
	if f := g.config.guard.permits; f != nil {
		var err error
		if c, err = f.of(ctx, p.req, c); err != nil {
			return Section{}, g.rejected(ctx, p.req, err)
		}
	}
	var v *guarded
	if g.tracked {
		v = &guarded{route: p.route, check: g.config.guard.check}
	}
	if l := g.config.guard.limit; l != nil {
		a, err := l.admit(ctx, p.req, g.locker, p.keys)
		if err != nil {
			return Section{}, g.rejected(ctx, p.req, err)
		}
		v.principal, v.admitted = Hashed(a.principal), a
		// Also where the request did not get its lock, a panic of an observer's
		// too, it has no share then.
		defer func() {
			if v.lease == nil {
				a.leave()
			}
		}()
	}
	inner := ctx
	if v != nil {
		v.Context, inner = ctx, v
	}
	lease, err := g.lock(inner, p, c, held)
	if err != nil {
		refusal := g.refusal(ctx, err)
		refusal.keys = p.keys
		if refusal.Reason == reason.Unavailable && g.config.guard.failOpen && ctx.Err() == nil {
			g.bypassed(ctx, p.req, refusal)
			return Section{ctx: &guarded{Context: ctx, bypassed: true}}, nil
		}
		wrong := "interlock: the rule cannot take its lock and refuses requests"
		if errors.Is(err, ErrUpgrade) {
			wrong = "interlock: the rule wants a lock that its requests hold in another way already, and refuses them"
		}
		g.logRefusal(ctx, refusal, wrong)
		return Section{}, refusal
	}
	if v != nil {
		v.lease = lease
		if v.admitted != nil {
			v.admitted.granted()
		}
	}
	return Section{guard: g, lease: lease, ctx: (*leaseContext)(lease), request: v}, nil
}

// lock takes the locks of a request.
func (g *Guard) lock(ctx context.Context, p Prepared, c *config, held callers) (*Lease, error) {
	if t := broughtFor(ctx, p.keys, c); t != nil {
		return g.locker.goOn(ctx, t, c)
	}
	if held == nil {
		return g.locker.lockWith(ctx, p.keys, c)
	}
	ctx, leave := g.locker.join(ctx, p.keys, c.terms, held)
	lease, err := g.locker.lockWith(ctx, p.keys, c)
	switch closed := leave(); {
	case closed && err == nil: // the caller's lock came free as the wait ended
		return nil, errors.Join(ErrHeldByCaller, lease.Release(ctx))
	case closed: // also for a rule that does not wait
		return nil, errors.Join(ErrHeldByCaller, err)
	}
	return lease, err
}

// configFor is how the locks of a request are taken: of a request that only reads as [ShareReads]
// says.
func (g *Guard) configFor(req Request) *config {
	if g.reads == nil {
		return &g.config
	}
	if r, ok := req.(adapter.Reader); ok && r.ReadsOnly() {
		return g.reads
	}
	return &g.config
}

// Section is what a handler runs in after [Guard.Enter]: under the lock of the
// guard, or without a lock where there is no guard or the guard lets the request
// through. [Guard.Enter] and [Prepared.Enter] make one; the zero value has no
// context.
type Section struct {
	guard   *Guard
	lease   *Lease // nil: without a lock
	ctx     context.Context
	request *guarded // nil: no option needs it
}

// Context returns the context of the handler. It is the context of the lease.
// Without a lock it derives from the context given to [Guard.Enter].
func (s Section) Context() context.Context { return s.ctx }

// BeginAnswer is the function [adapter.BeginAnswer] for this section.
func (s Section) BeginAnswer(success bool) bool { return s.request == nil || s.request.Begin(success) }

// Lost returns nil while the lock can be trusted. After a loss, and after the handler's context
// has ended for a newer request ([Newest]), it returns the
// [Refusal] for a client that was not answered before. Call it before
// [Section.Leave].
func (s Section) Lost() *Refusal {
	if s.lease == nil {
		return nil
	}
	// Read before the release, which would make it ErrReleased; that is also
	// what a handler leaves that released its lease itself, early, by intent.
	lost := s.lease.Err()
	if v := s.request; v != nil && v.check && !v.answered.Load() {
		lost = v.confirm() // an answer may follow: of net/http's for one
	}
	if lost == nil && s.ctx.Err() != nil && s.lease.superseded() {
		return &Refusal{Reason: reason.Superseded, Ran: true, Rule: s.guard.config.name, Err: ErrSuperseded, keys: s.lease.Keys()}
	}
	if lost == nil || errors.Is(lost, ErrReleased) {
		return nil
	}
	refusal := &Refusal{Reason: reason.Lost, Ran: true, Rule: s.guard.config.name, Err: lost, keys: s.lease.Keys()}
	if errors.Is(lost, ErrMaxHold) {
		refusal.Reason = reason.MaxHold
	}
	return refusal
}

// Leave releases the lock. It uses only the values of ctx. Errors go to the
// [observe.Observer]. With [AnswerFirst] it does not wait for the store. Leave may be
// called more than once; later calls do nothing.
func (s Section) Leave(ctx context.Context) {
	if s.lease == nil {
		return
	}
	if s.request != nil && s.request.admitted != nil {
		defer s.request.admitted.leave() // not before the lock has gone, or is about to
	}
	_ = s.lease.release(ctx, s.guard.config.guard.answerFirst && ctx.Value(carrier.Paired) == nil)
}
