package idempotency

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/internal/carrier"
	"github.com/interlock-go/interlock/core/internal/requests"
	"github.com/interlock-go/interlock/core/reason"
)

// Do deals with a request. It reads the key, claims its record and lets h run the
// handler, or finds out what else the client gets. An adapter calls Do once for
// each request and obeys the [endpoint.Verdict].
//
// The context of the handler has the values of ctx, but neither its cancellation
// nor its deadline: a client that goes away does not end its request. The context ends
// when the claim, or the lease that ctx has from a guard around the engine, can no longer
// be trusted ([core.ErrLost]), after [MaxHold] ([core.ErrMaxHold]), after [Engine.Close],
// and when the handler has returned.
//
// The answer is stored before Do returns, so before its first byte can leave. A
// panic of the handler passes through, after the claim was given up or, if its
// effect was marked, a status 500 was stored.
//
// Do is the list of the steps. The first one, identify, is below; its fingerprints are in
// fingerprint.go. Each further step is in the file of its name: claim, and then either run
// and conclude, or replay.
func (e *Engine) Do(ctx context.Context, call endpoint.Call, h endpoint.Handler) (v endpoint.Verdict) {
	defer func() {
		if v.Refusal != nil {
			v.Refusal.Profile = e.config.profile
		}
	}()
	ctx = core.WithHeld(ctx, call.Header(core.HeldHeader)...) // its handler may call on
	method, _, _ := call.Target()
	if _, matched := call.Route(); !matched || passes(call.Protocol(), method) {
		return e.pass(ctx, call, h, &attempt{})
	}
	begin := time.Now()
	key, err := call.Key()
	if errors.Is(err, endpoint.ErrKeyMissing) && e.config.optional {
		return e.pass(ctx, call, h, &attempt{})
	}
	var enclosing *attempt
	if err == nil {
		if enclosing = fromContext(ctx); enclosing != nil {
			enclosing = e.enclosing(ctx, enclosing, call, key)
		}
		if enclosing != nil && e.sameRequest(enclosing, call) {
			e.warnTwice(ctx)
			return e.pass(ctx, call, h, enclosing)
		}
	}
	admitted := e.drain.admit()
	if admitted {
		defer e.drain.done()
	}
	var a *attempt
	passed := false
	// The end of the request is reported here to the attempt around it and to the log, and
	// to the observer at the decision (refuse, replay, run).
	defer func() {
		switch {
		case passed: // the guards that it passed have reported
		case v.Refusal == nil && a != nil:
			carrier.Report(ctx, v.Inside)
		default:
			carrier.Report(ctx, v.Refusal)
			e.logRefusal(ctx, v.Refusal)
		}
	}()
	if !admitted {
		return e.refuse(ctx, begin, e.refusal(reason.Closing, core.ErrClosed))
	}
	a, refusal := e.identify(ctx, call, key, err)
	if refusal != nil {
		return e.refuse(ctx, begin, refusal)
	}
	reply, err := e.claim(ctx, a)
	if err != nil {
		why := reasonOf(ctx, err)
		if e.config.failOpen && why == reason.NoRecord && !errors.Is(err, ErrDamaged) && ctx.Err() == nil {
			e.bypassed(ctx, err)
			passed = true
			return e.pass(ctx, call, h, &attempt{id: a.id})
		}
		return e.refuse(ctx, begin, e.refusal(why, err))
	}
	if reply.State == record.StateGranted {
		return e.run(ctx, h, a, begin)
	}
	e.warnShared(ctx, enclosing, reply.State)
	return e.replay(ctx, a, reply, begin)
}

// identify makes the attempt of a request: its principal, its key and its fingerprint.
// Nothing is claimed yet.
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
	a := &attempt{engine: e, id: e.config.record(scope, key), protocol: call.Protocol()}
	a.secret, a.token = newToken()
	a.target[0], a.target[1], a.target[2] = call.Target()
	a.origin[0], a.origin[1], a.origin[2] = call.Origin()
	if a.protocol == endpoint.HTTP {
		a.accept = call.Header("Accept-Encoding")
	}
	var keys []string
	if g := e.config.guard; g != nil {
		// Its keys tell requests apart, and nothing is claimed if there are none.
		prepared, refusal := g.Prepare(ctx, call)
		if refusal != nil {
			return nil, refusal
		}
		a.prepared, keys = prepared, prepared.Keys()
	}
	if a.fingerprint, err = e.config.fingerprintOf(ctx, call, keys, body); err != nil {
		return nil, e.refusal(reasonOf(ctx, err), err)
	}
	return a, nil
}

// scope returns the space of keys of a call.
func (e *Engine) scope(ctx context.Context, call endpoint.Call) (string, error) {
	if s, ok := call.(endpoint.Scoper); ok {
		return s.Scope(func() (string, error) { return e.principal(ctx, call) })
	}
	principal, err := e.principal(ctx, call)
	if err != nil || !e.config.scopesEndpoints() {
		return principal, err
	}
	method, _, _ := call.Target()
	_, path, _ := call.Origin()
	return EndpointScope(principal, method, path), nil
}

// principal returns the principal of the key.
func (e *Engine) principal(ctx context.Context, call endpoint.Call) (string, error) {
	if e.config.global {
		return "", nil
	}
	scope, err := e.config.scope(ctx, requests.Copy(call))
	switch {
	case err != nil:
	case scope == "":
		err = endpoint.ErrNoPrincipal
	case strings.HasPrefix(scope, reservedScope):
		err = errReservedScope
	}
	return scope, err
}

// reservedScope begins the scopes of endpoints, services and functions. A principal that begins
// like that could name the scope of another principal there.
const reservedScope = "interlock "

// functionScope begins what once.ScopeOf returns.
const functionScope = reservedScope + "function\x00"

// named returns the record of a scope that a caller gives. A principal that the endpoint refuses is
// refused here, too: an engine accepts the scopes of its own endpoints, and the scopes of functions
// if functions is true.
func (c *config) named(scope, key string, functions bool) (id string, err error) {
	principal, reserved := scope, strings.HasPrefix(scope, reservedScope)
	if of, ok := strings.CutPrefix(scope, functionScope); ok && functions {
		principal, reserved = of, false
	} else if of, ok := strings.CutPrefix(scope, endpointScope); ok && c.scopesEndpoints() {
		if _, after, ok := strings.Cut(of, " "); ok { // after the method
			_, principal, ok = strings.Cut(after, " ")
			reserved = !ok
		}
	}
	if reserved || strings.HasPrefix(principal, reservedScope) {
		return "", errReservedScope
	}
	return c.record(scope, key), nil
}

// scopesEndpoints reports whether a key belongs to its endpoint: other profiles demand it.
func (c *config) scopesEndpoints() bool { return c.perEndpoint || c.profile != reason.IETFDraft }

var errReservedScope = fmt.Errorf("%w: a principal that begins with %q is refused", endpoint.ErrNoPrincipal, reservedScope)

// unscoped makes the refusal of a request without a principal. Most often that is a
// mistake of the server, so it is logged: the client gets no details.
func (e *Engine) unscoped(ctx context.Context, err error) *core.Refusal {
	switch {
	case errors.Is(err, endpoint.ErrNoPrincipal):
		e.log(ctx, slog.LevelWarn, "interlock: idempotent requests are refused, since the Scope function finds no principal: "+
			"authentication goes in front, and core.Request.Value finds what gin and echo keep by c.Set", err)
		return e.refusal(reason.NoPrincipal, err)
	case errors.Is(err, core.ErrKey):
		return e.refusal(reason.NoPrincipal, err)
	case errors.Is(ctx.Err(), context.Canceled):
		return e.refusal(reason.Canceled, err)
	case ctx.Err() != nil:
		return e.refusal(reason.Deadline, err)
	}
	return e.refusal(reason.Internal, fmt.Errorf("interlock: the Scope function fails: %w", err))
}

// pass runs the handler without a record, under the lock if there is a guard.
func (e *Engine) pass(ctx context.Context, call endpoint.Call, h endpoint.Handler, a *attempt) endpoint.Verdict {
	inner := ctx
	if a != fromContext(ctx) {
		inner = context.WithValue(ctx, carrier.Attempt, a)
	}
	if g := e.config.guard; g != nil {
		return endpoint.Verdict{Refusal: g.Do(inner, call, h.Pass)}
	}
	h.Pass(inner)
	return endpoint.Verdict{}
}
