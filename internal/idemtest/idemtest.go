// Package idemtest holds every adapter of idempotent endpoints against one table
// of behaviours, on a real Redis. An adapter's test is
//
//	func TestIdempotent(t *testing.T) { idemtest.RunHTTP(t, serveIdempotent) }
//
// where serveIdempotent serves an [Endpoint] with its framework. [Run] is for other
// protocols, whose builder makes the [Client] as well.
package idemtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/adaptertest"
	"github.com/interlock-go/interlock/internal/redistest"
)

// Patience bounds every wait. Nothing takes as long that works.
const Patience = 20 * time.Second

// Route is where an HTTP endpoint is served, for every method, in the syntax of
// net/http.
const Route = "/accounts/{id}/payments"

// Outcome is what a handler says, whatever the protocol.
type Outcome int

// The outcomes.
const (
	OK       Outcome = iota // 201, OK
	Declined                // 402, FAILED_PRECONDITION: it never will be carried out
	Busy                    // 429, RESOURCE_EXHAUSTED: it may be later
	Failed                  // 500, INTERNAL: who knows
	Nothing                 // no answer: nothing is written, the end of the context is returned
)

// Statuses are those of the outcomes in HTTP.
var Statuses = map[Outcome]int{OK: 201, Declined: 402, Busy: 429, Failed: 500}

// Handler is behind an endpoint. It is given the account and the amount that the
// request names.
type Handler func(ctx context.Context, account string, amount int64) (Outcome, string)

// Endpoint is what is to be served behind Idempotent.
type Endpoint struct {
	Engine *idempotency.Engine
	Handle Handler
	// Lock, unless nil, is the rule of a Serialize as a middleware of its own
	// behind Idempotent, and Again the engine of a second Idempotent there.
	Lock  *core.Guard
	Again *idempotency.Engine
	// HTTP is the handler instead, in cases of HTTP alone.
	HTTP http.HandlerFunc
	// Context, unless nil, makes the context of each request, as middleware in
	// front does that sets a time limit.
	Context func(context.Context) context.Context
	// Left is closed when the context of a request in front of Idempotent has
	// ended: the server knows that the client has gone.
	Left chan struct{}
}

// ErrDropped is what a handler returns for Nothing where handlers return errors.
var ErrDropped = errors.New("idemtest: the handler gave up")

// Front is the middleware in front: builders call it from one of their
// framework's. It returns what next panicked with.
func (e *Endpoint) Front(ctx context.Context, next func()) (thrown any) {
	stop := context.AfterFunc(ctx, func() {
		select {
		case e.Left <- struct{}{}:
		default:
		}
	})
	defer stop()
	defer func() { thrown = recover() }()
	next()
	return nil
}

// InFront returns the context of a request behind the middleware in front.
func (e *Endpoint) InFront(ctx context.Context) context.Context {
	if e.Context == nil {
		return ctx
	}
	return e.Context(ctx)
}

// ServeHTTP is the handler of frameworks on net/http. account is the parameter
// of the route.
func (e *Endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request, account string) {
	if e.HTTP != nil {
		e.HTTP(w, r)
		return
	}
	var payment struct{ Amount int64 }
	if err := json.NewDecoder(r.Body).Decode(&payment); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	outcome, text := e.Handle(r.Context(), account, payment.Amount)
	if outcome == Nothing {
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(Statuses[outcome])
	_, _ = io.WriteString(w, text)
}

// Request is a payment.
type Request struct {
	Keys      []string // the values of the key: none, one, or what is malformed
	Principal string   // "" is alice
	Account   string   // "" is 42
	Amount    int64
	Padding   int // how many bytes more the request has
}

// Answer is what came back.
type Answer struct {
	Outcome  Outcome
	Text     string
	Replayed bool
	Refusal  core.Reason // of the middleware's own; then nothing else is set
}

// Client sends requests to an endpoint. An error says that ctx has ended. It
// fails the test when a refusal has another status, or other hints, than the
// table says.
type Client interface {
	Call(ctx context.Context, r Request) (Answer, error)
}

// Builder serves an endpoint until the test ends, and returns a client of it.
type Builder func(tb testing.TB, e *Endpoint) Client

// HTTPBuilder makes the handler that serves an endpoint with an HTTP framework.
type HTTPBuilder func(tb testing.TB, e *Endpoint) http.Handler

// httpClient is the Client of all frameworks on net/http.
type httpClient struct {
	tb  testing.TB
	url string
	c   *http.Client
}

// httpStatuses is what DESIGN says, independently of the adapters.
var httpStatuses = map[core.Reason]int{
	core.ReasonBadKey: 400, core.ReasonKeyMissing: 400, core.ReasonKeyMalformed: 400, core.ReasonNoPrincipal: 400,
	core.ReasonInFlight: 409, core.ReasonOutcomeUnknown: 409, core.ReasonResponseUnavailable: 409,
	core.ReasonKeyExpired: 410, core.ReasonBodyTooLarge: 413, core.ReasonKeyReused: 422, core.ReasonHeld: 423,
	core.ReasonLost: 500, core.ReasonNoRecord: 503, core.ReasonClosing: 503,
}

// retryAfter are the refusals that ask the client to come back.
var retryAfter = map[core.Reason]string{
	core.ReasonInFlight: "1", core.ReasonHeld: "1", core.ReasonNoRecord: "1", core.ReasonClosing: "1",
}

func serveHTTP(build HTTPBuilder) Builder {
	return func(tb testing.TB, e *Endpoint) Client {
		tb.Helper()
		srv := adaptertest.Serve(tb, front(e, build(tb, e)))
		return &httpClient{tb, srv.URL, srv.Client()}
	}
}

// front is Endpoint.Front in front of everything, as a server's middleware is.
func front(e *Endpoint, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		limited := r.WithContext(e.InFront(r.Context()))
		if thrown := e.Front(r.Context(), func() { next.ServeHTTP(w, limited) }); thrown != nil {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = fmt.Fprint(w, thrown)
		}
	})
}

// Call implements Client.
func (c *httpClient) Call(ctx context.Context, p Request) (Answer, error) {
	account, principal := or(p.Account, "42"), or(p.Principal, "alice")
	body := fmt.Sprintf(`{"amount":%d}%s`, p.Amount, strings.Repeat(" ", p.Padding))
	url := c.url + strings.Replace(Route, "{id}", account, 1)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		c.tb.Error(err)
		return Answer{}, err
	}
	r.Header["Idempotency-Key"] = p.Keys
	r.Header.Set("Authorization", principal)
	resp, err := c.c.Do(r)
	if err != nil {
		return Answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return Answer{}, err
	}
	if resp.Header.Get("Content-Type") == "application/problem+json" && resp.Header.Get(idempotency.ReplayedHeader) == "" {
		var problem struct{ Type string }
		if err := json.Unmarshal(text, &problem); err != nil {
			c.tb.Errorf("a problem that is no JSON: %q", text)
		}
		reason := core.Reason(strings.TrimPrefix(problem.Type, "urn:interlock:problem:"))
		adaptertest.Answer{Status: resp.StatusCode, Header: resp.Header, Body: string(text)}.
			WantProblem(c.tb, httpStatuses[reason], string(reason), retryAfter[reason])
		return Answer{Refusal: reason}, nil
	}
	a := Answer{Outcome: -1, Text: string(text), Replayed: resp.Header.Get(idempotency.ReplayedHeader) == "true"}
	for outcome, status := range Statuses {
		if status == resp.StatusCode {
			a.Outcome = outcome
		}
	}
	if a.Outcome < 0 {
		c.tb.Errorf("status %d, %q", resp.StatusCode, text)
	}
	return a, nil
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// fixture is what one case runs on.
type fixture struct {
	*testing.T
	protocol string
	build    Builder
	srv      *redistest.Server
	rdb      *redis.Client
	wire     *wire
	store    *redisstore.Store
}

// newFixture returns one on a server, over a wire that can lose replies.
func newFixture(t *testing.T, protocol string, build Builder, srv *redistest.Server) *fixture {
	f := &fixture{T: t, protocol: protocol, build: build, srv: srv, wire: &wire{}}
	f.connect(srv.Client(t, func(o *redis.Options) { o.Dialer = f.wire.dial }))
	return f
}

// connect makes a store on a client.
func (f *fixture) connect(rdb *redis.Client) {
	f.Helper()
	store, err := redisstore.New(rdb, redisstore.Logger(slog.New(slog.DiscardHandler)))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := store.Close(); err != nil {
			f.Error(err)
		}
	})
	f.rdb, f.store = rdb, store
}

// engine returns an engine whose keys belong to principals.
func (f *fixture) engine(opts ...idempotency.Option) *idempotency.Engine {
	f.Helper()
	scope := idempotency.Scope(func(_ context.Context, r core.Request) (string, error) {
		return strings.Join(r.Header("Authorization"), ","), nil
	})
	e, err := idempotency.New(f.store, append([]idempotency.Option{scope}, opts...)...)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), Patience)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			f.Error(err)
		}
	})
	return e
}

// locker returns a locker on the same store.
func (f *fixture) locker() *core.Locker {
	f.Helper()
	l, err := core.New(f.store)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = l.Close(context.Background()) })
	return l
}

// endpoint is an endpoint that is served, and who calls it.
type endpoint struct {
	f *fixture
	*Endpoint
	client Client
}

func (f *fixture) serve(e *idempotency.Engine, h Handler) *endpoint {
	f.Helper()
	s := &Endpoint{Engine: e, Handle: h, Left: make(chan struct{}, 1)}
	return &endpoint{f, s, f.build(f, s)}
}

// call sends a request that is to be answered.
func (e *endpoint) call(r Request) Answer {
	e.f.Helper()
	ctx, cancel := context.WithTimeout(e.f.Context(), Patience)
	defer cancel()
	a, err := e.client.Call(ctx, r)
	if err != nil {
		e.f.Errorf("no answer: %v", err)
	}
	return a
}

// pay sends the payment with a key.
func (e *endpoint) pay(key string) Answer {
	e.f.Helper()
	return e.call(Request{Keys: []string{key}})
}

// start sends the payment with a key in the background, and returns what waits
// for its answer.
func (e *endpoint) start(key string) (answer func() Answer) {
	var a Answer
	var wg sync.WaitGroup
	wg.Go(func() { a = e.pay(key) })
	return func() Answer { wg.Wait(); return a }
}

func (f *fixture) want(what string, got, want Answer) {
	f.Helper()
	if got != want {
		f.Errorf("%s: %+v; want %+v", what, shortened(got), shortened(want))
	}
}

func shortened(a Answer) Answer {
	if len(a.Text) > 100 {
		a.Text = fmt.Sprintf("%d bytes", len(a.Text))
	}
	return a
}

// records counts the records in the store.
func (f *fixture) records() int {
	f.Helper()
	keys, err := f.rdb.Keys(f.Context(), "interlock:idem:*").Result()
	if err != nil {
		f.Fatal(err)
	}
	return len(keys)
}

// eventually waits for what only the server knows.
func (f *fixture) eventually(what string, try func() bool) {
	f.Helper()
	redistest.Eventually(f, Patience, func(context.Context) error {
		if !try() {
			return errors.New(what)
		}
		return nil
	})
}

// gate is the inside of a handler that can be held there.
type gate struct{ inside, leave chan struct{} }

func newGate() gate { return gate{make(chan struct{}, 10), make(chan struct{})} }

// pass waits at the gate; a test that has failed lets it go in the end.
func (g gate) pass() {
	g.inside <- struct{}{}
	timer := time.NewTimer(Patience)
	defer timer.Stop()
	select {
	case <-g.leave:
	case <-timer.C:
	}
}

// wait bounds the wait for an event.
func (f *fixture) wait(what string, event <-chan struct{}) {
	f.Helper()
	timer := time.NewTimer(Patience)
	defer timer.Stop()
	select {
	case <-event:
	case <-timer.C:
		f.Error("never: " + what) // not Fatal: handlers wait as well
	}
}

// wire loses replies of the server on command.
type wire struct {
	mu     sync.Mutex
	marker string
	lost   int
}

// lose loses the next reply that has a text, and breaks its connection.
func (w *wire) lose(marker string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.marker, w.lost = marker, 0
}

func (w *wire) losses() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

func (w *wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &lossy{conn, w}, nil
}

type lossy struct {
	net.Conn
	wire *wire
}

func (c *lossy) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.wire.mu.Lock()
	defer c.wire.mu.Unlock()
	if c.wire.marker != "" && strings.Contains(string(b[:n]), c.wire.marker) {
		c.wire.marker = ""
		c.wire.lost++
		_ = c.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}
