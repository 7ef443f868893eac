// Package conformance lets one test be run against the locks of every
// framework. A [Service] says what is to be served, without naming a protocol;
// an adapter's builder serves it in a few lines; the [Client] that comes of it
// calls it, and tells in the same words for all protocols what came back.
//
// A new framework on net/http ends its builder with [Service.ServeHTTP]; any
// other protocol implements Client.
package conformance

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
)

// Patience bounds every wait of a test. Nothing takes as long that works; it is
// not an expectation of how fast anything is.
const Patience = 10 * time.Second

// Service is a route with its locks, whatever the protocol. Its fields are set
// before it is served.
type Service struct {
	// Guards are the locks around the handler, the outermost first.
	Guards []*core.Guard
	// Params are the parameters of the route, in its order. In gRPC they are
	// fields of the message: id, from, to.
	Params []string
	// Handler is what runs under the locks. Its error, the end of its context
	// excepted, is answered as [ErrHandler] by HTTP handlers and returned where
	// handlers return errors.
	Handler func(ctx context.Context, call *Call) error
	// Derive is what the middleware in front of the locks does to the context.
	// Nil: nothing.
	Derive func(ctx context.Context) context.Context
	// User is what authentication in front of the locks puts under "user" into
	// the framework's own context, where there is one (gin, echo).
	User string
	// HTTP2 serves HTTP/2 instead of HTTP/1.1. gRPC always does.
	HTTP2 bool
	// ReadBody has the body of HTTP requests read before anything else runs.
	ReadBody bool

	runs   atomic.Int64
	visits chan Visit
}

// Call is what a handler is given.
type Call struct {
	// Param returns a parameter as the framework has it.
	Param func(name string) string
	// Send sends a text as the answer, or as its next part. What a stream of
	// gRPC sends arrives at once, what HTTP handlers write when it is flushed.
	Send func(text string) error
	// W and R are what an HTTP handler has; nil in gRPC.
	W http.ResponseWriter
	R *http.Request
}

// ErrHandler is an answer of the handler's own that is a failure: 409 in HTTP,
// FAILED_PRECONDITION in gRPC.
var ErrHandler = errors.New("conformance: the handler refuses")

// Visit is what the middleware in front of the locks saw of one call.
type Visit struct {
	// Panic is what came through the locks; nil for none.
	Panic any
	// Restored says that the request has the context again that the middleware
	// gave to it, and that the locks have not ended it.
	Restored bool
	// After is the request as the middleware finds it afterwards; nil in gRPC.
	After *http.Request
}

// Front is the middleware in front of the locks: builders call it from one of
// their framework's. next runs the locks and the handler under a context, and
// returns the framework's request afterwards, nil where there is none. A panic
// passes through.
func (s *Service) Front(ctx context.Context, next func(ctx context.Context) *http.Request) {
	if s.Derive != nil {
		ctx = s.Derive(ctx)
	}
	ended := ctx.Err()
	visit := Visit{Panic: errors.New("conformance: runtime.Goexit")}
	defer func() {
		// A recovered nil panic is a *runtime.PanicNilError: nil is a Goexit, or
		// an ordinary end, which has overwritten what stands there.
		if v := recover(); v != nil {
			visit.Panic = v
			s.visits <- visit
			panic(v)
		}
		s.visits <- visit
	}()
	visit.After = next(ctx)
	visit.Panic = nil
	visit.Restored = visit.After == nil || visit.After.Context() == ctx && (ended != nil || ctx.Err() == nil)
}

// Handle runs the handler: builders call it from one of their framework's.
func (s *Service) Handle(ctx context.Context, call *Call) error {
	s.runs.Add(1)
	return s.Handler(ctx, call)
}

// Runs counts how often the handler was entered.
func (s *Service) Runs() int64 { return s.runs.Load() }

// Visit waits until a call has left the middleware in front of the locks, and
// returns what that saw. Calls are returned in the order in which they left.
func (s *Service) Visit(t testing.TB) Visit {
	t.Helper()
	select {
	case v := <-s.visits:
		return v
	case <-time.After(Patience):
		t.Fatal("no call came back through the locks")
		return Visit{}
	}
}

// start makes a service ready for its first call.
func (s *Service) start() { s.visits = make(chan Visit, 1000) }

// Client calls a service. It is safe for concurrent use.
type Client interface {
	// Call makes a call and waits for all of the answer.
	Call(ctx context.Context, req Request) Outcome
	// Open makes a call and returns when the answer begins. It is only for
	// clients whose answers come in parts.
	Open(ctx context.Context, req Request) (Stream, error)
}

// Stream is an answer that comes in parts.
type Stream interface {
	// Next returns the next part, and io.EOF after the last. HTTP parts end
	// with a line.
	Next() (string, error)
	// Close gives the rest up.
	Close()
}

// Request is what a client sends.
type Request struct {
	// Values are the parameters' values.
	Values map[string]string
	// Path is used instead of Values by HTTP clients: already escaped, without
	// the first slash.
	Path string
	// Header are further headers, in gRPC metadata.
	Header [][2]string
	// Body is the body of an HTTP request.
	Body string
}

// Outcome is how a call ended.
type Outcome struct {
	// Ran says that a handler was entered while the call was made. It is about
	// this call where no other one may have begun meanwhile.
	Ran bool
	// OK says that the answer is a success, Text what was sent with it.
	OK   bool
	Text string
	// Code is the protocol's word for the status: "423", "Aborted". It is
	// empty where an HTTP client got no answer.
	Code string
	// Reason is core's, as clients read it; Domain says whose it is.
	Reason, Domain string
	// Detail is the text for people.
	Detail string
	// Retry says when the client is invited to try again, "" for not; Pushback
	// is what gRPC tells its clients' retry policies.
	Retry, Pushback string
}
