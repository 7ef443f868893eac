package adaptertest

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/internal/testkit"
)

// Service is a route with its middleware, in any protocol. Its fields are set
// before it is served.
type Service struct {
	// Layers are the middleware of this module around the handler, the outermost
	// first.
	Layers []Layer
	// Route is the path in the syntax of http.ServeMux, without a method; empty:
	// /{id}/call. In gRPC its parameters are fields of the message: id, from, to.
	Route string
	// Handler runs inside the layers. Its error, the end of its context excepted,
	// is answered as [ErrHandler] by HTTP handlers and returned where handlers
	// return errors.
	Handler func(ctx context.Context, call *Call) error
	// Derive changes the context in the middleware in front of the layers. Nil: nothing.
	Derive func(ctx context.Context) context.Context
	// User is what authentication in front of the layers puts under "user" into
	// the framework's own context, where there is one (gin, echo).
	User string

	// InFront is middleware in front of an HTTP framework; nil: none.
	InFront http.HandlerFunc
	// HTTP2 serves HTTP/2 instead of HTTP/1.1. gRPC always does.
	HTTP2 bool
	// ReadBody has the body of HTTP requests read before anything else runs.
	ReadBody bool

	runs   atomic.Int64
	visits chan Visit
	left   chan struct{}
}

// Layer is a middleware of this module: a lock, or an idempotent endpoint.
type Layer struct {
	Lock       *core.Guard
	Idempotent *idempotency.Engine
}

// Call is the input of a handler.
type Call struct {
	// Param returns a parameter as the framework has it.
	Param func(name string) string
	// Amount returns the amount in the request's message, or in its body, which
	// it reads.
	Amount func() (int64, error)
	// Send sends a text as the answer, or as its next part. Messages of a stream of gRPC
	// arrive at once, the output of HTTP handlers at a flush.
	Send func(text string) error
	// Answer sends a result with its text. The handler returns its error.
	Answer func(result Result, text string) error
	// W and R are the arguments of an HTTP handler; nil in gRPC.
	W http.ResponseWriter
	R *http.Request
}

// ErrHandler is an answer of the handler's own that is a failure: 409 in HTTP,
// FAILED_PRECONDITION in gRPC.
var ErrHandler = errors.New("adaptertest: the handler refuses")

// Visit is one call as the middleware in front of the layers saw it.
type Visit struct {
	// Panic is the panic that came through the layers; nil for none.
	Panic any
	// Restored says that the request has the context again that the middleware
	// gave to it, and that the layers have not ended it.
	Restored bool
	// After is the request as the middleware finds it afterwards; nil in gRPC.
	After *http.Request
}

// Front is the middleware in front of the layers: builders call it from a
// middleware of their framework. next runs the layers and the handler under a context, and
// returns the framework's request afterwards, nil where there is none. A panic
// passes through.
func (s *Service) Front(ctx context.Context, next func(ctx context.Context) *http.Request) {
	defer context.AfterFunc(ctx, func() {
		select {
		case s.left <- struct{}{}:
		default:
		}
	})()
	if s.Derive != nil {
		ctx = s.Derive(ctx)
	}
	ended := ctx.Err()
	visit := Visit{Panic: errors.New("adaptertest: runtime.Goexit")}
	defer func() {
		// A recovered nil panic is a *runtime.PanicNilError: nil is a Goexit, or
		// an ordinary end, which has overwritten what stands there.
		v := recover()
		if v != nil {
			visit.Panic = v
		}
		select {
		case s.visits <- visit:
		default: // more calls than any test asks for
		}
		if v != nil {
			panic(v)
		}
	}()
	visit.After = next(ctx)
	visit.Panic = nil
	visit.Restored = visit.After == nil || visit.After.Context() == ctx && (ended != nil || ctx.Err() == nil)
}

// Handle runs the handler: builders call it from a handler of their framework.
func (s *Service) Handle(ctx context.Context, call *Call) error {
	s.runs.Add(1)
	return s.Handler(ctx, call)
}

// Runs counts how often the handler was entered.
func (s *Service) Runs() int64 { return s.runs.Load() }

// Visit waits until a call has left the middleware in front of the layers, and returns the
// record of it. Calls are returned in the order of their ends.
func (s *Service) Visit(t testing.TB) Visit {
	t.Helper()
	select {
	case v := <-s.visits:
		return v
	case <-time.After(testkit.Patience):
		t.Fatal("no call came back through the layers")
		return Visit{}
	}
}

// Left receives when the context of a call in front of the layers has ended before
// the call: the server knows that the client has gone.
func (s *Service) Left() <-chan struct{} { return s.left }

// Start makes a service ready for its first call: builders of protocols that have no
// server here call it.
func (s *Service) Start() {
	s.visits, s.left = make(chan Visit, 1000), make(chan struct{}, 1)
}
