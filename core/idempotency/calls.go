package idempotency

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/internal/ident"
	"github.com/interlock-go/interlock/core/reason"
)

// RequestError is the error of a client that has sent a request to an idempotent endpoint and
// has no answer to return: httplock.Transport, and the interceptors for clients of grpclock and
// connectlock. Err says what that means:
//
//   - It matches [ErrOutcomeUnknown]: the request may have been carried out. Ask again later
//     with the same key ([WithKey]). With another key the effect could come twice.
//   - It matches [ErrResponseUnavailable]: a request with the key was carried out, and its
//     response cannot be had.
//   - It matches neither: nothing was carried out.
//
// It matches [ErrKeyReused] if the server knows the key from another request. With a key that may
// have been sent before ([WithKey], [CallKey]) it then matches ErrOutcomeUnknown, too: an earlier
// attempt with another body may have been carried out, and asking again does not tell. Make the
// bodies of all attempts equal. It matches [core.ErrHeldByCaller] if the outcome is unknown, and the
// last try was refused for a lock that the caller holds ([core.HeldHeader]).
type RequestError struct {
	// Key is the idempotency key of the request, for [WithKey].
	Key string
	// Tries is the number of times that the request was sent.
	Tries int
	// Status is the HTTP status of the last response. It is 0 if there was none, and in gRPC and
	// connect, where status.Code and connect.CodeOf find the code in Err.
	Status int
	// Reason is the reason of the last response, if that was a refusal of this module; else it is
	// empty.
	Reason reason.Reason
	// RetryAfter is when it is worth to ask again: for as long as the server asks, or else for as
	// long as the client would have paused.
	RetryAfter time.Duration
	// Err is the cause. It is never nil.
	Err error
}

// Error returns a text without the key.
func (e *RequestError) Error() string {
	return fmt.Sprintf("interlock: no response to an idempotent request, sent %d times: %v", e.Tries, e.Err)
}

// Unwrap returns Err.
func (e *RequestError) Unwrap() error { return e.Err }

// Timeout reports whether Err is the end of a time limit, as net.Error has it.
func (e *RequestError) Timeout() bool {
	var slow interface{ Timeout() bool }
	return errors.As(e.Err, &slow) && slow.Timeout()
}

// pinned is the value of a context that says which key a call has.
type pinned struct {
	text  string
	isKey bool     // of WithKey; else it is the name of WithCall
	in    *attempt // the attempt that it was given in; nil: outside of all
}

type pinnedKey struct{}

// WithKey returns a context with the idempotency key of one request that a client of this
// module sends. A job that stores the key before it sends the request can send the request
// again after a crash, and has its effect once. The key has 1 to 255 visible ASCII characters
// or spaces.
//
// Use the context for one request only: the server refuses a second, different request with the
// key ([ErrKeyReused]). A client cannot know whether a key of its caller was sent before. So an
// answer that says that nothing was carried out now (503, a 403 of a proxy) does not settle the
// request, and the caller gets an error that matches [ErrOutcomeUnknown].
//
// In the handler of an idempotent endpoint a key of WithKey counts if WithKey was called in that
// handler; see [CallKey].
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, pinnedKey{}, pinned{key, true, fromContext(ctx)})
}

// WithCall returns a context that names one call of a handler to another service. Inside the
// handler of an idempotent endpoint the client derives the call's key from the name and the
// target. Name the calls that do not come in the same order in each attempt, as calls of several
// goroutines:
//
//	for _, item := range order.Items {
//		group.Go(func() error { return reserve(idempotency.WithCall(ctx, item.SKU), item) })
//	}
//
// A name stands for one call to a target: a second call with it is the same call, sent again,
// and gets the answer of the first. So a name also serves a loop that repeats one call. Outside
// of such a handler a name has no effect.
func WithCall(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, pinnedKey{}, pinned{name, false, fromContext(ctx)})
}

// ErrUnnamedCall says that a handler makes two calls to one target at once, and names neither.
// Their keys would depend on chance. [WithCall] names a call.
var ErrUnnamedCall = errors.New("interlock: an attempt makes two calls to one target at once, and a retry could give " +
	"each the key of the other: name each call by idempotency.WithCall, or give it a key by idempotency.WithKey")

// CallKey returns the idempotency key of a call to another service. It is for authors of
// clients: httplock.Transport, and the interceptors of grpclock and connectlock, call it.
// target names the operation, as method and URL without the query. It is the same in each attempt:
// httplock.Transport leaves out an IP address with its port, and the address of this machine. The
// first of these that there is:
//
//   - the key of [WithKey]
//   - inside the handler of an idempotent endpoint, a function of package once or a job: a key
//     that is derived as by [DownstreamKey] from the request, the target and the name of the call
//     ([WithCall]), or else the number of the call among the calls to the target. It is the same
//     in each attempt, so a handler that runs again after a crash does not pay twice.
//   - none, and found is false: the client makes a new key.
//
// In a [Step] the key is derived from the name of the step as well, and the numbers count its calls.
//
// Numbers follow the order of the calls. A handler that repeats a call in a loop makes two calls,
// with two keys, unless it names the call. A job ([Engine.TakeOver]) counts anew, and has other keys
// than the handler; names they share. While a call without a name is under way, another one
// to the same target gets [ErrUnnamedCall]. The client calls done, once, when the call has ended;
// done is never nil.
func CallKey(ctx context.Context, target string) (key string, found bool, done func(), err error) {
	a := fromContext(ctx)
	p, given := ctx.Value(pinnedKey{}).(pinned)
	given = given && p.in == a // and not outside of the attempt, where it was for another call
	switch {
	case given && p.isKey:
		return p.text, true, func() {}, nil
	case a == nil || a.id == "":
		return "", false, func() {}, nil
	}
	numbers, r := &a.calls, stepOf(ctx, a)
	var steps []string
	if r != nil { // its calls are the same in a job
		numbers, steps = &r.calls, []string{"step", r.name}
	}
	if given {
		return ident.Downstream(a.id, append([]string{callStep, target, "name", p.text}, steps...)), true, func() {}, nil
	}
	n, done, err := numbers.begin(target)
	if err != nil {
		return "", false, func() {}, err
	}
	steps = append([]string{callStep, target, "number", strconv.Itoa(n)}, steps...)
	if a.hops > 0 && r == nil { // a job counts anew, and its calls are not the handler's
		steps = append(steps, "job", strconv.Itoa(a.hops))
	}
	return ident.Downstream(a.id, steps), true, done, nil
}

// callStep begins the steps of derived keys, so that they differ from all keys that DownstreamKey
// derives for a step of the handler's.
const callStep = "\x00call"

// calls numbers the calls of an attempt to each target.
type calls struct {
	mu sync.Mutex
	to map[string]*numbered
}

type numbered struct {
	last     int
	underWay bool
}

// begin returns the number of a call that begins. Two goroutines can race here. Either the
// second finds the call of the first under way, or the call of the first has ended; then the
// application decides their order.
func (c *calls) begin(target string) (n int, done func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	to := c.to[target]
	if to == nil {
		if c.to == nil {
			c.to = make(map[string]*numbered)
		}
		to = &numbered{}
		c.to[target] = to
	}
	if to.underWay {
		return 0, nil, ErrUnnamedCall
	}
	to.last++
	to.underWay = true
	return to.last, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		to.underWay = false
	}, nil
}
