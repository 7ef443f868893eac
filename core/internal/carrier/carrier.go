// Package carrier names the values that a context carries between packages of the core that
// cannot import each other, and finds them.
//
// gin gives its handlers a *gin.Context, which is a [context.Context]. By default it shows
// nothing of the context of its request: not the lease, not the attempt, not the end. A
// handler that passes it on has lost all three without a word. [Value] finds the first two.
package carrier

import (
	"context"
	"reflect"
)

// Key is the key of a value in a context.
type Key int

const (
	// Gate is the key of the innermost guard, which an adapter asks before an answer leaves: the
	// value has the method Begin of core.Section.
	Gate Key = iota
	// Attempt is the key of the attempt at an idempotent request. Package record enlists
	// transactions with it, and cannot import the engine.
	Attempt
	// Reporter is the key of a func(*core.Refusal), which middleware around guards gives them:
	// package idempotency keeps and repeats answers, and must know whether an answer comes from
	// the handler or from this module. A guard calls it with the outcome of each request, before
	// Guard.Do returns:
	//
	//   - a refusal with Ran false: the guard refused, and its handler did not run;
	//   - a refusal with Ran true: the handler ran, and the lease was lost before it had
	//     answered;
	//   - nil: the handler ran, and the answer is the handler's own.
	//
	// Where guards are nested, the inner guards report. The outer guard reports only if it lost
	// its own lease. A handler that panics under a valid lease counts as a handler that ran. A
	// function of the guard that panics before the handler (a KeyFunc, for example) counts as a
	// refusal. The function is safe for concurrent use and does not block.
	Reporter
	// Paired marks the context of a release that shares a pipeline with another request. The
	// caller waits for that request anyway. Such a release must not move to a separate
	// goroutine (core.AnswerFirst): the pipelined release costs no extra time, and the
	// goroutine would send it alone.
	Paired
	// Fences is the key of the fences that rules have claimed for the request of a context
	// (core.Fenced).
	Fences
	// Relayed is the key of the fences that came with the request of a context, for the services
	// that it calls.
	Relayed
	// Ticket is the key of the ticket that came with a message (core.WithTicket).
	Ticket
	// Stuck is the key of a request's *atomic.Bool. True means: the request's callers hold locks, and a call of the
	// handler was refused because of these locks (adapter.NoteStuck).
	Stuck
)

// Report calls the [Reporter] of ctx, if there is one. R is core.Refusal: package core imports
// this package.
func Report[R any](ctx context.Context, refusal *R) {
	if report, _ := Value(ctx, Reporter).(func(*R)); report != nil {
		report(refusal)
	}
}

// ginContext is gin.ContextKey: each context that derives from a *gin.Context returns that
// context for it.
const ginContext = "_gin-gonic/gin/contextkey"

// Value returns the value of a key in ctx, or else in the context of the request that ctx
// carries; nil if both have none.
func Value(ctx context.Context, key any) any {
	if v := ctx.Value(key); v != nil {
		return v
	}
	return Hidden(ctx, key)
}

// Hidden returns the value of a key in the context of the request that ctx carries; nil if
// there is none.
func Hidden(ctx context.Context, key any) any {
	carrier := ctx.Value(ginContext)
	if carrier == nil {
		return nil
	}
	// The package of gin is not imported for this. The request is a field.
	c := reflect.ValueOf(carrier)
	if c.Kind() != reflect.Pointer || c.IsNil() || c.Elem().Kind() != reflect.Struct {
		return nil
	}
	request := c.Elem().FieldByName("Request")
	if request.Kind() != reflect.Pointer || request.IsNil() || !request.CanInterface() {
		return nil
	}
	r, ok := request.Interface().(interface{ Context() context.Context })
	if !ok {
		return nil
	}
	return r.Context().Value(key)
}
