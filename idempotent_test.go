package interlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/adaptertest"
	"github.com/interlock-go/interlock/internal/redistest"
)

// An idempotent endpoint means the same in every framework. This file runs the
// tables of its cases, those of all protocols and those of HTTP, over the list of
// adapters.

// row is a case.
type row struct {
	name string
	own  bool // it needs a server of its own, since it kills it
	http bool // it is about HTTP
	run  func(f *fixture)
}

func TestIdempotent(t *testing.T) {
	for _, c := range slices.Concat(endpointCases, stackedCases, waitingCases, sealingCases, panicCases,
		responseCases, headerCases, bodyCases, selectCases) {
		t.Run(c.name, func(t *testing.T) {
			for _, a := range adapters {
				if !a.idempotent || c.http && !a.http {
					continue
				}
				t.Run(a.name, func(t *testing.T) {
					if c.own {
						c.run(newFixture(t, a, redistest.Start(t)))
					} else {
						c.run(newFixture(t, a, redistest.Shared(t)))
					}
				})
			}
		})
	}
}

// handler is behind an endpoint.
type handler func(ctx context.Context) (adaptertest.Result, string)

// payment is a request to an endpoint.
type payment struct {
	keys      []string // the values of the key: none, one, or what is malformed
	principal string   // "" is alice
	account   string   // "" is 42
	amount    int64
	padding   int // how many bytes more the request has
}

// reply is what came back.
type reply struct {
	Result   adaptertest.Result
	Text     string
	Replayed bool
	Refusal  core.Reason // of the middleware's own; then nothing else is set
}

func fresh(n int) reply { return reply{Text: fmt.Sprint("payment ", n)} }

func replayed(n int) reply { return reply{Text: fmt.Sprint("payment ", n), Replayed: true} }

func refused(r core.Reason) reply { return reply{Refusal: r} }

// fixture is what one case of one adapter runs on.
type fixture struct {
	*world
	srv   *redistest.Server
	wire  *wire
	store *redisstore.Store
}

// newFixture returns one on a server, over a wire that can lose replies.
func newFixture(t *testing.T, a adapter, srv *redistest.Server) *fixture {
	f := &fixture{world: &world{t, a, nil, "interlock"}, srv: srv, wire: &wire{}}
	f.connect(srv.Client(t, func(o *redis.Options) { o.Dialer = f.wire.dial }))
	return f
}

// connect makes a store on a client.
func (f *fixture) connect(rdb *redis.Client) {
	f.Helper()
	f.rdb, f.store = rdb, adaptertest.Store(f, rdb)
}

// engine returns an engine whose keys belong to principals.
func (f *fixture) engine(opts ...idempotency.Option) *idempotency.Engine {
	f.Helper()
	scope := idempotency.Scope(func(_ context.Context, r core.Request) (string, error) {
		return strings.Join(r.Header("Authorization"), ","), nil
	})
	return adaptertest.EngineOn(f, f.store, append([]idempotency.Option{scope}, opts...)...)
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

// protocol is that of the adapter.
func (f *fixture) protocol() string {
	if f.http {
		return idempotency.HTTP
	}
	return idempotency.GRPC
}

// endpoint is an endpoint that is served.
type endpoint struct {
	f *fixture
	*adaptertest.Service
	client adaptertest.Client
}

// serve serves a handler behind an engine and more layers.
func (f *fixture) serve(e *idempotency.Engine, h handler, behind ...adaptertest.Layer) *endpoint {
	f.Helper()
	return f.serveUnder(nil, e, h, behind...)
}

// serveUnder serves a handler as serve does, in contexts that are derived from
// those of the requests.
func (f *fixture) serveUnder(derive func(context.Context) context.Context, e *idempotency.Engine, h handler, behind ...adaptertest.Layer) *endpoint {
	f.Helper()
	s := &adaptertest.Service{
		Route:  "/accounts/{id}/payments",
		Layers: append([]adaptertest.Layer{{Idempotent: e}}, behind...),
		Derive: derive,
		Handler: func(ctx context.Context, call *adaptertest.Call) error {
			if _, err := call.Amount(); err != nil {
				f.Errorf("the handler does not read its request: %v", err)
			}
			result, text := h(ctx)
			if result == adaptertest.None {
				return ctx.Err()
			}
			return call.Answer(result, text)
		},
	}
	return &endpoint{f, s, f.start(f, s)}
}

// send sends a request.
func (e *endpoint) send(ctx context.Context, p payment) adaptertest.Outcome {
	r := adaptertest.Request{
		Values: map[string]string{"id": or(p.account, "42")},
		Header: [][2]string{{"authorization", or(p.principal, "alice")}},
		Body:   fmt.Sprintf(`{"amount":%d}%s`, p.amount, strings.Repeat(" ", p.padding)),
		Amount: p.amount, Padding: p.padding,
	}
	for _, key := range p.keys {
		r.Header = append(r.Header, [2]string{"idempotency-key", key})
	}
	return e.client.Call(ctx, r)
}

// call sends a request that is to be answered. It holds a refusal against the
// table of answers.
func (e *endpoint) call(p payment) reply {
	e.f.Helper()
	ctx, cancel := context.WithTimeout(e.f.Context(), adaptertest.Patience)
	defer cancel()
	o := e.send(ctx, p)
	switch {
	case o.Code == "" || ctx.Err() != nil:
		e.f.Errorf("no answer: %+v", o)
	case o.Reason != "":
		o.Ran = false // others may have begun
		e.f.wantRefused(o, core.Reason(o.Reason), false)
		return refused(core.Reason(o.Reason))
	case o.Result() == adaptertest.None:
		e.f.Errorf("%+v", o)
	}
	return reply{Result: o.Result(), Text: o.Text, Replayed: o.Replayed}
}

// pay sends the payment with a key.
func (e *endpoint) pay(key string) reply {
	e.f.Helper()
	return e.call(payment{keys: []string{key}})
}

// start sends the payment with a key in the background, and returns what waits
// for its answer.
func (e *endpoint) start(key string) (answer func() reply) {
	var a reply
	var wg sync.WaitGroup
	wg.Go(func() { a = e.pay(key) })
	return func() reply { wg.Wait(); return a }
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func (f *fixture) want(what string, got, want reply) {
	f.Helper()
	if got != want {
		f.Errorf("%s: %+v; want %+v", what, shortened(got), shortened(want))
	}
}

func shortened(a reply) reply {
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
	redistest.Eventually(f, adaptertest.Patience, func(context.Context) error {
		if !try() {
			return errors.New(what)
		}
		return nil
	})
}

// wait bounds the wait for an event. It fails the test and goes on, since handlers
// wait as well.
func (f *fixture) wait(what string, event <-chan struct{}) {
	f.Helper()
	if err := adaptertest.Meet(context.Background(), event); err != nil {
		f.Error("never: " + what)
	}
}

// payments counts effects, and answers with their number.
type payments struct{ effects atomic.Int64 }

func (b *payments) pay(context.Context) (adaptertest.Result, string) {
	return adaptertest.OK, fmt.Sprint("payment ", b.effects.Add(1))
}

// fails is a handler that gives its first answer once, and then pays.
func (b *payments) fails(first handler) handler {
	return func(ctx context.Context) (adaptertest.Result, string) {
		if b.effects.Add(1) == 1 {
			return first(ctx)
		}
		return adaptertest.OK, fmt.Sprint("payment ", b.effects.Load())
	}
}

func says(result adaptertest.Result, text string) handler {
	return func(context.Context) (adaptertest.Result, string) { return result, text }
}

// marks marks the effect before h.
func (f *fixture) marks(h handler) handler {
	return func(ctx context.Context) (adaptertest.Result, string) {
		if err := idempotency.MarkEffect(ctx); err != nil {
			f.Errorf("marking the effect: %v", err)
		}
		return h(ctx)
	}
}

// held is a handler that waits at a gate.
func held(g adaptertest.Gate, h handler) handler {
	return func(ctx context.Context) (adaptertest.Result, string) {
		g.Pass()
		return h(ctx)
	}
}

// die ends an engine as the end of its process would: nothing of what it has
// claimed is given up.
func die(e *idempotency.Engine) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = e.Close(ctx)
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
