package idempotency

import (
	"context"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/record"
)

// inside is what guards, and engines of other stores, that run inside an attempt
// have answered in place of the handler. None of that is ever stored: it is true for
// a moment, and a retry has to get the handler's answer.
type inside struct {
	mu      sync.Mutex // the handler may use several goroutines
	ran     bool       // the handler of a guard ran, and the answer was its own
	refused *core.Refusal
	lost    *core.Refusal
}

// note is the function of [carrier.Reporter].
func (i *inside) note(refusal *core.Refusal) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case refusal == nil:
		i.ran = true
	case refusal.Ran:
		i.lost = refusal
	default:
		i.refused = refusal
	}
}

// refusal returns the refusal that caused an unsuccessful answer; nil if the answer is the
// handler's own.
//
// A handler may ask a guard, be refused, and have its effect all the same. So an
// answer of success is the handler's, and so is an answer that came after the handler of
// some guard has run.
func (i *inside) refusal() *core.Refusal {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.lost != nil:
		return i.lost
	case i.ran:
		return nil
	}
	return i.refused
}

// enclosing returns the attempt a that ctx runs under if it is for the same key of the same
// principal, and has not ended; else nil.
func (e *Engine) enclosing(ctx context.Context, a *attempt, call endpoint.Call, key string) *attempt {
	if a.engine == nil {
		return nil
	}
	scope, err := e.scope(ctx, call)
	if err != nil || e.config.record(scope, key) != a.id {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return nil
	}
	return a
}

// sameRequest reports whether a request inside an attempt is the attempt's own: the
// middleware is there twice, on a group and on a route. Its record would be held by
// the attempt that waits for it. A request for something else, or to a service with
// another Store, has a separate record: if the attempt fails and is carried out again,
// the inner record must still answer.
//
// The origin tells the two apart. Middleware between the group and the route may have
// changed the path (http.StripPrefix), the method or, with the path as it was, the host.
// A function has no origin, and its target is its input.
func (e *Engine) sameRequest(a *attempt, call endpoint.Call) bool {
	if a.protocol != call.Protocol() || !sameStore(e.store, a.engine.store) {
		return false
	}
	method, path, query := call.Target()
	sameTarget := a.target == [3]string{method, path, query}
	host, path, query := call.Origin()
	if path == "" {
		return sameTarget
	}
	return a.origin[1] == path && a.origin[2] == query && (a.origin[0] == host || sameTarget)
}

func sameStore(a, b Store) bool {
	return reflect.TypeOf(a) == reflect.TypeOf(b) && reflect.TypeOf(a).Comparable() && a == b
}

// nesting notes which warnings about requests inside requests were logged.
type nesting struct{ twice, shared atomic.Bool }

// warnTwice says once that an endpoint has the middleware twice.
func (e *Engine) warnTwice(ctx context.Context) {
	if e.nesting.twice.CompareAndSwap(false, true) {
		e.lines.Line(ctx, slog.LevelWarn, "interlock: a request passes the idempotency middleware twice, on a group and on a route "+
			"for one; the inner one lets the request through, and its options do not count, except Under: remove one of the two",
			"rule", e.config.name)
	}
}

// warnShared says once that a request has the record of the request that it is made
// in.
func (e *Engine) warnShared(ctx context.Context, enclosing *attempt, state record.State) {
	if enclosing != nil && (state == record.StateInFlight || state == record.StateMismatch) && e.nesting.shared.CompareAndSwap(false, true) {
		e.lines.Line(ctx, slog.LevelWarn, "interlock: an idempotent request makes another one with the same key, and both keep their records "+
			"in one place, so the inner one is refused: give the engine of each service its name (idempotency.Service)",
			"rule", e.config.name, "outer", enclosing.engine.config.name)
	}
}
