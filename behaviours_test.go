package interlock_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/adaptertest"
	"github.com/interlock-go/interlock/internal/redistest"
	otellock "github.com/interlock-go/interlock/otel"
)

// This file shows the behaviours that middleware_test.go lists.

// world is what one behaviour of one adapter is tried in. Its keys in Redis are
// its own.
type world struct {
	*testing.T
	adapter
	rdb    *redis.Client
	prefix string
}

var worlds atomic.Int64

func newWorld(t *testing.T, a adapter, rdb *redis.Client) *world {
	return &world{t, a, rdb, fmt.Sprintf("w%d", worlds.Add(1))}
}

// locker returns a locker, each as of a process of its own.
func (w *world) locker(opts ...core.Option) *core.Locker {
	w.Helper()
	store, err := redisstore.New(w.rdb, redisstore.Prefix(w.prefix), redisstore.Logger(slog.New(slog.DiscardHandler)))
	if err != nil {
		w.Fatal(err)
	}
	locker, err := core.New(store, opts...)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), adaptertest.Patience)
		defer cancel()
		if err := errors.Join(locker.Close(ctx), store.Close()); err != nil {
			w.Error(err)
		}
	})
	return locker
}

// serve serves a handler under guards, with the parameter id.
func (w *world) serve(handler func(context.Context, *adaptertest.Call) error, guards ...*core.Guard) (*adaptertest.Service, adaptertest.Client) {
	w.Helper()
	s := &adaptertest.Service{Layers: locks(guards...), Handler: handler}
	return s, w.start(w, s)
}

// account is a request for an account.
func account(id string) adaptertest.Request {
	return adaptertest.Request{Values: map[string]string{"id": id}}
}

// say is a handler that answers.
func say(text string) func(context.Context, *adaptertest.Call) error {
	return func(_ context.Context, call *adaptertest.Call) error { return call.Send(text) }
}

// flush sends what an HTTP handler has written so far.
func flush(call *adaptertest.Call) error {
	call.W.(http.Flusher).Flush()
	return nil
}

// keysOf answers with the keys of its lease.
func keysOf(ctx context.Context, call *adaptertest.Call) error {
	lease := core.LeaseFromContext(ctx)
	if lease == nil {
		return call.Send("no lease")
	}
	return call.Send(strings.Join(lease.Keys(), " "))
}

// hold takes a lock as a batch job would, for the rest of the test or until the
// returned function is called.
func (w *world) hold(locker *core.Locker, key string) (leave func()) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), adaptertest.Patience)
	defer cancel()
	lease, err := locker.Lock(ctx, key)
	if err != nil {
		w.Fatal(err)
	}
	leave = func() { _ = lease.Release(context.Background()) }
	w.Cleanup(leave)
	return leave
}

// async makes a call on a goroutine of its own.
func async(ctx context.Context, client adaptertest.Client, req adaptertest.Request) <-chan adaptertest.Outcome {
	c := make(chan adaptertest.Outcome, 1)
	go func() { c <- client.Call(ctx, req) }()
	return c
}

// wantFree fails the test if the key of a lock is still in Redis.
func (w *world) wantFree(key string) {
	w.Helper()
	if n, err := w.rdb.Exists(w.Context(), w.prefix+":{"+key+"}").Result(); n != 0 || err != nil {
		w.Errorf("%s: the lock is still there (%d, %v)", key, n, err)
	}
}

// wantOK fails the test unless the call was answered by its handler.
func (w *world) wantOK(o adaptertest.Outcome, text string) {
	w.Helper()
	if !o.OK || o.Text != text {
		w.Errorf("%+v; want %q", o, text)
	}
}

// wantRefused holds an outcome against the table.
func (w *world) wantRefused(o adaptertest.Outcome, reason core.Reason, ran bool) {
	w.Helper()
	row, known := answers[reason]
	if !known {
		w.Fatalf("%s is not in the table", reason)
	}
	want := adaptertest.Outcome{Ran: ran, Reason: string(reason), Domain: "interlock", Detail: reason.Text()}
	if want.Code, want.Retry = row.http, row.httpRetry; !w.http {
		want.Code, want.Retry, want.Pushback = row.grpc, row.grpcRetry, row.pushback
	}
	if o != want {
		w.Errorf("\n%+v; want\n%+v", o, want)
	}
}

// quiet silences what guards log about rules that cannot work, and go-redis
// about servers that are down.
func quiet(t *testing.T) {
	logging.Disable()
	t.Cleanup(logging.Enable)
	old := slog.Default()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	t.Cleanup(func() { slog.SetDefault(old) })
}

// onlyHTTP is for what no other protocol has.
func onlyHTTP(holds func(w *world)) func(w *world) {
	return func(w *world) {
		if w.http {
			holds(w)
		}
	}
}

func (w *world) exclusion() {
	locker := w.locker()
	var inside [2]atomic.Int64
	var plain [2]int // by the locks alone, as the race detector sees
	var came [2]sync.Once
	both := make(chan struct{})
	var first sync.WaitGroup
	first.Add(2)
	go func() { first.Wait(); close(both) }()
	_, client := w.serve(func(ctx context.Context, call *adaptertest.Call) error {
		i := strings.Index("ab", call.Param("id"))
		if n := inside[i].Add(1); n != 1 {
			w.Errorf("%d inside", n)
		}
		defer inside[i].Add(-1)
		plain[i]++
		came[i].Do(first.Done)
		return adaptertest.Meet(ctx, both) // inside both at the same time, or never
	}, core.Serialize(locker, "account/{id}", core.Wait(time.Minute)))
	const each = 6
	var calls []<-chan adaptertest.Outcome
	for i := range 2 * each {
		calls = append(calls, async(w.Context(), client, account("ab"[i%2:][:1])))
	}
	for _, c := range calls {
		w.wantOK(adaptertest.Receive(w, c, "the end of a call"), "")
	}
	if plain != [2]int{each, each} {
		w.Errorf("%v ran", plain)
	}
}

func (w *world) transfers() {
	locker := w.locker()
	s, client := w.bank(locker, &ledger{"a": 100, "b": 100})
	var calls []<-chan adaptertest.Outcome
	for i := range 12 {
		calls = append(calls, async(w.Context(), client, transfer(i)))
	}
	for _, c := range calls {
		if o := adaptertest.Receive(w, c, "the end of a transfer"); !o.OK {
			w.Errorf("%+v", o)
		}
	}
	if n := s.Runs(); n != 12 {
		w.Errorf("%d ran", n)
	}
	w.wantFree("account/a")
	w.wantFree("account/b")
}

// ledger has balances that nothing but locks protects.
type ledger map[string]int

// transfer is one of three: there, back, and to itself.
func transfer(i int) adaptertest.Request {
	way := [...][2]string{{"a", "b"}, {"b", "a"}, {"a", "a"}}[i%3]
	return adaptertest.Request{Values: map[string]string{"from": way[0], "to": way[1]}}
}

// bank serves transfers between accounts, in which both are locked.
func (w *world) bank(locker *core.Locker, balance *ledger) (*adaptertest.Service, adaptertest.Client) {
	s := &adaptertest.Service{
		Layers: locks(core.Serialize(locker, "account/{from}", core.And("account/{to}"), core.Wait(time.Minute))),
		Route:  "/{from}/{to}/call",
		Handler: func(_ context.Context, call *adaptertest.Call) error {
			from, to := call.Param("from"), call.Param("to")
			if sum := (*balance)["a"] + (*balance)["b"]; sum != 200 {
				w.Errorf("the sum is %d", sum) // somebody is in the middle of a transfer
			}
			(*balance)[from]--
			(*balance)[to]++
			return nil
		},
	}
	return s, w.start(w, s)
}

func (w *world) reentry() {
	locker := w.locker()
	guard := core.Serialize(locker, "account/{id}", core.Wait(0))
	s, client := w.serve(func(ctx context.Context, call *adaptertest.Call) error {
		// In code as well as by the same rule twice on one route.
		return locker.Do(ctx, "account/"+call.Param("id"), func(context.Context) error {
			if held := locker.Held(); len(held) != 1 || held[0].Holds != 3 {
				w.Errorf("held is %+v; want three holds of one lock", held)
			}
			return call.Send("inside")
		}, core.Wait(0))
	}, guard, guard)
	for range 2 {
		w.wantOK(client.Call(w.Context(), account("1")), "inside")
		s.Visit(w)
		w.wantFree("account/1")
	}
}

// ends makes the behaviour that the lock is free after a handler has ended.
func ends(ok bool, handler func(context.Context, *adaptertest.Call) error) func(w *world) {
	return func(w *world) {
		s, client := w.serve(handler, core.Serialize(w.locker(), "account/{id}", core.Wait(0)))
		for range 2 {
			o := client.Call(w.Context(), account("1"))
			if !ok && o.Code != "409" && o.Code != "FailedPrecondition" {
				w.Errorf("%+v; want the handler's own error", o)
			}
			if v := s.Visit(w); v.Panic != nil || !o.Ran || o.OK != ok || o.Reason != "" {
				w.Errorf("%+v, %+v", o, v)
			}
			w.wantFree("account/1")
		}
	}
}

func panics(value any) func(w *world) {
	return func(w *world) {
		s, client := w.serve(func(context.Context, *adaptertest.Call) error { panic(value) },
			core.Serialize(w.locker(), "account/{id}", core.Wait(0)))
		for range 2 {
			// The locks make no answer of it: that is for whoever recovers.
			if o := client.Call(w.Context(), account("1")); o.OK || o.Reason != "" || !o.Ran {
				w.Errorf("%+v", o)
			}
			if v := s.Visit(w); v.Panic != value {
				w.Errorf("%v came through; want %v", v.Panic, value)
			}
			w.wantFree("account/1")
		}
	}
}

func (w *world) disconnect() {
	inside := make(chan struct{}, 1)
	s, client := w.serve(func(ctx context.Context, _ *adaptertest.Call) error {
		if core.LeaseFromContext(ctx).Token() == 0 {
			w.Error("no token")
		}
		inside <- struct{}{}
		return adaptertest.Meet[struct{}](ctx, nil)
	}, core.Serialize(w.locker(), "account/{id}", core.Wait(0)))
	for range 2 {
		ctx, cancel := context.WithCancel(w.Context())
		call := async(ctx, client, account("1"))
		adaptertest.Receive(w, inside, "the handler")
		cancel()
		s.Visit(w)
		w.wantFree("account/1")
		if o := adaptertest.Receive(w, call, "the call's end"); o.OK {
			w.Errorf("%+v", o)
		}
	}
}

// never is a handler that must not run.
func (w *world) never(context.Context, *adaptertest.Call) error {
	w.Error("the handler ran")
	return nil
}

// The shapes of an HTTP request whose client may leave. Of one over HTTP/1 with
// a body that nobody has read, the server does not learn that.
type shape int

const (
	http1 shape = iota
	bodyRead
	http2
)

func leaves(how shape, body string) func(w *world) {
	return func(w *world) {
		locker := w.locker()
		w.hold(locker, "account/1")
		s := &adaptertest.Service{
			Layers:   locks(core.Serialize(locker, "account/{id}", core.Wait(time.Minute))),
			Handler:  w.never,
			HTTP2:    how == http2,
			ReadBody: how == bodyRead,
		}
		client := w.start(w, s)
		ctx, cancel := context.WithCancel(w.Context())
		req := account("1")
		req.Body = body
		call := async(ctx, client, req)
		adaptertest.Queued(w, locker, 1)
		cancel()
		if v := s.Visit(w); v.Panic != nil { // long before the wait is over
			w.Errorf("%+v", v)
		}
		adaptertest.Queued(w, locker, 0)
		if o := adaptertest.Receive(w, call, "the call's end"); o.OK {
			w.Errorf("%+v", o)
		}
	}
}

func (w *world) leftBehind() {
	locker := w.locker()
	leave := w.hold(locker, "account/1")
	s, client := w.serve(keysOf, core.Serialize(locker, "account/{id}", core.Wait(time.Minute)))
	ctx, cancel := context.WithCancel(w.Context())
	gone := async(ctx, client, account("1"))
	adaptertest.Queued(w, locker, 1)
	stays := async(w.Context(), client, account("1"))
	adaptertest.Queued(w, locker, 2)
	cancel()
	leave() // at about the same time
	w.wantOK(adaptertest.Receive(w, stays, "the turn of the one that stayed"), "account/1")
	adaptertest.Receive(w, gone, "the end of the one that left")
	s.Visit(w)
	s.Visit(w)
	adaptertest.Queued(w, locker, 0)
	w.wantFree("account/1")
}

// refusal is a behaviour: a call that is refused before its handler runs.
type refusal struct {
	want     core.Reason
	template string // default account/{id}
	keyFunc  func(context.Context, core.Request) ([]string, error)
	opts     []core.Option
	id       string   // default 1
	header   []string // X-Tenant
	query    string
	held     bool // by somebody else
	closed   bool // the locker
	down     bool // the store
}

func (r refusal) holds(w *world) {
	var server *redistest.Server
	if r.down {
		server = redistest.Start(w)
		w.rdb = server.Client(w)
	}
	locker := w.locker()
	template := r.template
	switch {
	case r.keyFunc != nil:
		r.opts = append(r.opts, core.KeyFunc(r.keyFunc))
	case template == "":
		template = "account/{id}"
	}
	s, client := w.serve(w.never, core.Serialize(locker, template, r.opts...))
	if r.held {
		w.hold(locker, "account/1")
	}
	if r.closed {
		if err := locker.Close(w.Context()); err != nil {
			w.Fatal(err)
		}
	}
	if r.down {
		server.Kill()
	}
	id := r.id
	if id == "" {
		id = "1"
	}
	req := account(id)
	req.Body = id
	for _, v := range r.header {
		req.Header = append(req.Header, [2]string{"X-Tenant", v})
	}
	if r.query != "" {
		req.Path = id + "/call?" + r.query
	}
	logged := adaptertest.LogTo(w)
	w.wantRefused(client.Call(w.Context(), req), r.want, false)
	if v := s.Visit(w); v.Panic != nil || !v.Restored {
		w.Errorf("%+v", v)
	}
	adaptertest.Queued(w, locker, 0)
	switch text := logged.String(); r.want {
	case core.ReasonMisconfigured:
		route := s.Pattern("{", "}")
		switch w.name {
		case "gin", "echo":
			route = s.Pattern(":", "")
		case "gRPC", "gRPC stream":
			route = "id, from, to" // the message's fields
		}
		if !strings.Contains(text, template) && !strings.Contains(text, "{nope}") || !strings.Contains(text, route) {
			w.Errorf("logged:\n%s", text)
		}
	case core.ReasonHeld, core.ReasonBadKey, core.ReasonBodyTooLarge:
		if text != "" && r.opts == nil {
			w.Errorf("the client's mistake is logged:\n%s", text)
		}
	}
}

func (w *world) queueFull() {
	locker := w.locker()
	leave := w.hold(locker, "account/1")
	_, client := w.serve(keysOf, core.Serialize(locker, "account/{id}", core.Wait(time.Minute), core.MaxWaiters(1)))
	waiter := async(w.Context(), client, account("1"))
	adaptertest.Queued(w, locker, 1)
	w.wantRefused(client.Call(w.Context(), account("1")), core.ReasonQueueFull, false)
	w.wantOK(client.Call(w.Context(), account("2")), "account/2") // a queue of its own
	leave()
	w.wantOK(adaptertest.Receive(w, waiter, "the waiter's turn"), "account/1")
}

// deadlineContext is a context whose deadline is over when the test says so.
type deadlineContext struct {
	context.Context
	over chan struct{}
}

func (c deadlineContext) Done() <-chan struct{} { return c.over }

func (c deadlineContext) Err() error {
	select {
	case <-c.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func (w *world) deadline() {
	locker := w.locker()
	w.hold(locker, "account/1")
	over := make(chan struct{})
	s := &adaptertest.Service{
		Layers:  locks(core.Serialize(locker, "account/{id}", core.Wait(time.Minute))),
		Handler: w.never,
		Derive:  func(ctx context.Context) context.Context { return deadlineContext{ctx, over} },
	}
	call := async(w.Context(), w.start(w, s), account("1"))
	adaptertest.Queued(w, locker, 1)
	close(over)
	w.wantRefused(adaptertest.Receive(w, call, "the answer"), core.ReasonDeadline, false)
	adaptertest.Queued(w, locker, 0)
}

func (w *world) closing() {
	locker := w.locker()
	leave := w.hold(locker, "account/1")
	_, client := w.serve(w.never, core.Serialize(locker, "account/{id}", core.Wait(time.Minute)))
	call := async(w.Context(), client, account("1"))
	adaptertest.Queued(w, locker, 1)
	closed := make(chan error, 1)
	go func() { closed <- locker.Close(w.Context()) }()
	w.wantRefused(adaptertest.Receive(w, call, "the answer"), core.ReasonClosing, false)
	leave() // who holds a lock is waited for
	if err := adaptertest.Receive(w, closed, "the locker's end"); err != nil {
		w.Error(err)
	}
}

func (w *world) failOpen() {
	server := redistest.Start(w)
	w.rdb = server.Client(w)
	locker := w.locker()
	s, client := w.serve(keysOf, core.Serialize(locker, "account/{id}", core.Wait(10*time.Millisecond), core.FailOpen()))
	server.Kill()
	w.wantOK(client.Call(w.Context(), account("1")), "no lease")
	if v := s.Visit(w); !v.Restored {
		w.Errorf("%+v", v)
	}
}

// An empty segment of a path never reaches a handler. Some routers know no such
// route, which is as good; a message always has its fields.
func (w *world) emptyParam() {
	s, client := w.serve(w.never, core.Serialize(w.locker(), "account/{id}"))
	o := client.Call(w.Context(), account(""))
	if !w.http || o.Reason != "" {
		w.wantRefused(o, core.ReasonBadKey, false)
	} else if !slices.Contains([]string{"301", "307", "404"}, o.Code) {
		w.Errorf("%+v", o)
	}
	if s.Runs() != 0 {
		w.Error("the handler ran")
	}
}

// keys sends values that frameworks decode, normalize or split in their own
// ways. Whatever else they do with them, the lock's key is the same.
func (w *world) keys() {
	_, client := w.serve(keysOf, core.Serialize(w.locker(), "account/{id}"))
	for _, c := range []struct{ id, path, want string }{
		{id: "A", want: "A"},
		{id: "A", path: "%41", want: "A"}, // escaped without need
		{id: "%41", want: "%2541"},        // not decoded twice
		{id: "%2541", want: "%252541"},
		{id: "%", want: "%25"},
		{id: "a/b", want: "a%2Fb"},
		{id: "a/b", path: "a%2fb", want: "a%2Fb"},
		{id: "A/b", path: "%41%2Fb", want: "A%2Fb"},
		{id: "%41/b", want: "%2541%2Fb"},
		{id: "{}", want: "%7B%7D"},
		{id: "{id}", want: "%7Bid%7D"},
		{id: "}{", want: "%7D%7B"},
		{id: "\r\n", want: "%0D%0A"},
		{id: "1\r\nDEL x", want: "1%0D%0ADEL%20x"},
		{id: "\x00", want: "%00"},
		{id: "ö", want: "%C3%B6"},
		{id: "ö", path: "ö", want: "%C3%B6"}, // raw bytes in the path
		{id: "o\u0308", want: "o%CC%88"},     // not normalized
		{id: "日本/語", want: "%E6%97%A5%E6%9C%AC%2F%E8%AA%9E"},
		{id: "a b", want: "a%20b"},
		{id: "a+b", want: "a%2Bb"}, // no blank: this is no form
		{id: "a+b", path: "a+b", want: "a%2Bb"},
		{id: "a+b", path: "a%2Bb", want: "a%2Bb"},
		{id: "2f3a:1", want: "2f3a%3A1"},
		{id: "", path: "%FF", want: "%FF"}, // no UTF-8, which a message cannot have
		{id: "a;b=c", want: "a%3Bb%3Dc"},
		{id: "?x=y", want: "%3Fx%3Dy"},
		{id: "..", path: "%2e%2e", want: ".."},
		{id: "-._~", want: "-._~"},
		{id: ":id", want: "%3Aid"},
		{id: "*", want: "%2A"},
		{id: strings.Repeat("x", 504), want: strings.Repeat("x", 504)}, // and no byte more
	} {
		if c.id == "" && !w.http {
			continue
		}
		req := account(c.id)
		if c.path != "" {
			req.Path = c.path + "/call"
		}
		if o := client.Call(w.Context(), req); !o.OK || o.Text != "account/"+c.want {
			w.Errorf("%q (%s): %+v; want account/%s", c.id, c.path, o, c.want)
		}
	}
}

func (w *world) headerKey() {
	_, client := w.serve(keysOf, core.Serialize(w.locker(), "tenant/{header.x-TENANT}/{id}"))
	req := account("1")
	req.Header = [][2]string{{"X-Tenant", "a/{b}"}}
	w.wantOK(client.Call(w.Context(), req), "tenant/a%2F%7Bb%7D/1")
}

// bodyKey has a KeyFunc read the body twice, to see that it is put back each time.
func (w *world) bodyKey() {
	keys := core.KeyFunc(func(_ context.Context, req core.Request) (keys []string, err error) {
		native := map[string]string{"net/http": "*http.Request", "gin": "*gin.Context", "echo": "*echo.context"}
		if got := fmt.Sprintf("%T", req.Native()); got != native[w.name] {
			w.Errorf("the native request is a %s", got)
		}
		var order struct{ Account string }
		for range 2 {
			body, failed := req.Body(1 << 20)
			if failed == nil {
				failed = json.Unmarshal(body, &order)
			}
			err = failed
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", core.ErrKey, err)
		}
		key, err := core.Key("account", order.Account)
		return []string{key}, err
	})
	_, client := w.serve(func(ctx context.Context, call *adaptertest.Call) error {
		body, err := io.ReadAll(call.R.Body)
		if err != nil {
			w.Error(err)
		}
		return call.Send(fmt.Sprintf("%s %x", core.LeaseFromContext(ctx).Key(), sha256.Sum256(body)))
	}, core.Serialize(w.locker(), "", keys))
	post := func(body string) adaptertest.Outcome {
		req := account("1")
		req.Body = body
		return client.Call(w.Context(), req)
	}
	body := `{"account":"a/1","note":"` + strings.Repeat("x", 1<<16) + `"}`
	w.wantOK(post(body), fmt.Sprintf("account/a%%2F1 %x", sha256.Sum256([]byte(body))))
	for _, bad := range []string{`{"account":""}`, `{`, ``, `"` + strings.Repeat("x", 1<<20)} {
		w.wantRefused(post(bad), core.ReasonBadKey, false) // the KeyFunc makes ErrKey of everything
	}
}

// wantEnd waits until a handler's context ends, as it must with its lease.
func (w *world) wantEnd(ctx context.Context, want error) {
	w.Helper()
	_ = adaptertest.Meet[struct{}](ctx, nil)
	if cause := context.Cause(ctx); !errors.Is(cause, want) {
		w.Errorf("cause %v; want %v", cause, want)
	}
}

// lose takes the lease away from the handler.
func (w *world) lose(ctx context.Context) {
	lease := core.LeaseFromContext(ctx)
	if lease == nil {
		w.Error("the handler has no lease")
		return
	}
	if n, err := w.rdb.Del(ctx, w.prefix+":{"+lease.Key()+"}").Result(); n != 1 || err != nil {
		w.Errorf("deleted %d, %v", n, err)
	}
	if err := lease.Check(ctx); !errors.Is(err, core.ErrLost) { // asks now, as the watchdog does later
		w.Errorf("check: %v; want ErrLost", err)
	}
	w.wantEnd(ctx, core.ErrLost)
}

// wantLoss waits until OnLost is told, and looks whether that says what happened
// to the lock of account 1.
func (w *world) wantLoss(losses <-chan core.Loss, answered core.Answered) {
	w.Helper()
	l := adaptertest.Receive(w, losses, "OnLost")
	if l.Key != "account/1" || l.Rule != "account/{id}" || l.Reason != core.LossDeleted || l.Answered != answered ||
		l.Route == "" || l.Owner == "" || l.Token == 0 || l.Held <= 0 {
		w.Errorf("%v", l)
	}
}

func (w *world) lostBefore() {
	losses := make(chan core.Loss, 10)
	s, client := w.serve(func(ctx context.Context, _ *adaptertest.Call) error {
		w.lose(ctx)
		return ctx.Err()
	}, core.Serialize(w.locker(), "account/{id}", core.OnLost(func(l core.Loss) { losses <- l })))
	w.wantRefused(client.Call(w.Context(), account("1")), core.ReasonLost, true)
	if v := s.Visit(w); v.Panic != nil || !v.Restored {
		w.Errorf("%+v", v)
	}
	w.wantLoss(losses, core.AnsweredNo)
}

// The answer is the refusal, of whose header the handler has described nothing.
func (w *world) lostDescribed() {
	s := &adaptertest.Service{
		Layers: locks(core.Serialize(w.locker(), "account/{id}")),
		InFront: func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Set-Cookie", "csrf=1")
			rw.Header().Set("Vary", "Origin")
			rw.Header().Set("X-Front", "1")
		},
		Handler: func(ctx context.Context, call *adaptertest.Call) error {
			h := call.W.Header()
			for name, value := range map[string]string{
				"ETag": `"1"`, "Content-Encoding": "br", "Location": "/payments/1", "Last-Modified": "Sun, 01 Nov 2026 00:00:00 GMT",
				"Cache-Control": "max-age=3600", "Content-Length": "1", "Content-Type": "text/csv", "X-Balance": "100",
			} {
				h.Set(name, value)
			}
			h.Add("Set-Cookie", "paid=1")
			h.Add("Vary", "Accept")
			h.Del("X-Front")
			w.lose(ctx)
			return nil
		},
	}
	a := adaptertest.Post(w, w.start(w, s).(*adaptertest.HTTPClient).Server, "/1/call")
	a.WantProblem(w, 500, "lost", "")
	a.Header.Del("Date")
	a.Header.Del("Content-Length") // that of the problem
	want := http.Header{
		"Set-Cookie": {"csrf=1"}, "Vary": {"Origin"}, "X-Front": {"1"},
		"Cache-Control": {"no-store"}, "Content-Type": {"application/problem+json"},
	}
	if !maps.EqualFunc(a.Header, want, slices.Equal) {
		w.Errorf("header %v; want %v", a.Header, want)
	}
}

// A handler that has noticed the loss has the last word.
func (w *world) lostOwn() {
	s, client := w.serve(func(ctx context.Context, call *adaptertest.Call) error {
		w.lose(ctx)
		return call.Answer(adaptertest.Declined, "rolled back")
	}, core.Serialize(w.locker(), "account/{id}"))
	if o := client.Call(w.Context(), account("1")); o.Code != "402" || o.Text != "rolled back" {
		w.Errorf("%+v", o)
	}
	s.Visit(w)
}

// lostAfter makes the behaviour that an answer which has begun stays as it is,
// and the loss is for the operators.
func lostAfter(begin func(*adaptertest.Call) error, text string) func(w *world) {
	return func(w *world) {
		losses := make(chan core.Loss, 10)
		s, client := w.serve(func(ctx context.Context, call *adaptertest.Call) error {
			err := begin(call)
			w.lose(ctx)
			return err
		}, core.Serialize(w.locker(), "account/{id}", core.OnLost(func(l core.Loss) { losses <- l })))
		w.wantOK(client.Call(w.Context(), account("1")), text)
		s.Visit(w)
		if w.http {
			w.wantLoss(losses, core.AnsweredYes)
		} else { // where the handler's return is the answer
			w.wantLoss(losses, core.AnsweredNo)
		}
	}
}

// lostChecked makes the behaviour that a success is held back which a handler
// gives although its lock is lost, where the rule checks answers.
func lostChecked(begin func(*adaptertest.Call) error) func(w *world) {
	return func(w *world) {
		losses := make(chan core.Loss, 10)
		s, client := w.serve(func(ctx context.Context, call *adaptertest.Call) error {
			lease := core.LeaseFromContext(ctx)
			if n, err := w.rdb.Del(ctx, w.prefix+":{"+lease.Key()+"}").Result(); n != 1 || err != nil {
				w.Errorf("deleted %d, %v", n, err)
			}
			_ = begin(call) // nobody has noticed yet
			_ = begin(call)
			return nil
		}, core.Serialize(w.locker(), "account/{id}", core.CheckAnswer(), core.OnLost(func(l core.Loss) { losses <- l })))
		o := client.Call(w.Context(), account("1"))
		if w.parts && !w.http { // what a stream has sent has left, its end is held back
			o.Text = ""
		}
		w.wantRefused(o, core.ReasonLost, true)
		if v := s.Visit(w); v.Panic != nil || !v.Restored {
			w.Errorf("%+v", v)
		}
		w.wantLoss(losses, core.AnsweredNo)
	}
}

// A handler that panics after its answer was held back has answered nothing:
// whoever recovers can.
func (w *world) lostCheckedPanic() {
	s, client := w.serve(func(ctx context.Context, call *adaptertest.Call) error {
		w.rdb.Del(ctx, w.prefix+":{account/1}")
		_ = call.Send("done")
		panic("after all")
	}, core.Serialize(w.locker(), "account/{id}", core.CheckAnswer()))
	if o := client.Call(w.Context(), account("1")); o.Code != "500" || o.Text != "after all" { // as it recovers
		w.Errorf("%+v", o)
	}
	if v := s.Visit(w); v.Panic != "after all" {
		w.Errorf("%+v", v)
	}
}

// An empty answer of net/http's is a success too, and checked.
func (w *world) lostSilent() {
	s, client := w.serve(func(ctx context.Context, _ *adaptertest.Call) error {
		w.rdb.Del(ctx, w.prefix+":{account/1}")
		return nil
	}, core.Serialize(w.locker(), "account/{id}", core.CheckAnswer()))
	w.wantRefused(client.Call(w.Context(), account("1")), core.ReasonLost, true)
	s.Visit(w)
}

func (w *world) checked() {
	guard := core.Serialize(w.locker(), "account/{id}", core.CheckAnswer())
	s, client := w.serve(func(ctx context.Context, call *adaptertest.Call) error {
		return core.Commit(ctx, func() error { return call.Send("done") })
	}, guard, guard)
	w.wantOK(client.Call(w.Context(), account("1")), "done")
	s.Visit(w)
	w.wantFree("account/1")
}

// A loss that nobody has noticed is noticed by the commit.
func (w *world) lostCommit() {
	s, client := w.serve(func(ctx context.Context, _ *adaptertest.Call) error {
		w.rdb.Del(ctx, w.prefix+":{account/1}")
		err := core.Commit(ctx, func() error { w.Error("committed"); return nil })
		if !errors.Is(err, core.ErrLost) {
			w.Errorf("%v; want ErrLost", err)
		}
		return err
	}, core.Serialize(w.locker(), "account/{id}"))
	w.wantRefused(client.Call(w.Context(), account("1")), core.ReasonLost, true)
	s.Visit(w)
}

// tenant is the principal of a request.
func tenant(_ context.Context, req core.Request) (string, error) {
	return strings.Join(req.Header("X-Tenant"), ","), nil
}

// from is a principal's request for an account.
func from(principal, id string) adaptertest.Request {
	req := account(id)
	req.Header = [][2]string{{"X-Tenant", principal}}
	return req
}

func (w *world) principalHolds() {
	inside, leave := make(chan struct{}, 1), make(chan struct{})
	s, client := w.serve(func(ctx context.Context, call *adaptertest.Call) error {
		if call.Param("id") != "1" {
			return nil
		}
		inside <- struct{}{}
		return adaptertest.Meet(ctx, leave)
	}, core.Serialize(w.locker(), "account/{id}", core.PerPrincipal(tenant, 1, 10)))
	first := async(w.Context(), client, from("a", "1"))
	adaptertest.Receive(w, inside, "the holder")
	w.wantRefused(client.Call(w.Context(), from("a", "2")), core.ReasonPrincipalLimit, false)
	w.wantOK(client.Call(w.Context(), from("b", "2")), "")
	leave <- struct{}{}
	w.wantOK(adaptertest.Receive(w, first, "the holder's end"), "")
	for range 3 {
		s.Visit(w) // by then the share is given back
	}
	w.wantOK(client.Call(w.Context(), from("a", "2")), "")
}

// userKey is where authentication leaves the user that has no framework's own
// context to put it into.
type userKey struct{}

// user is one function for all frameworks.
func user(_ context.Context, req core.Request) (string, error) {
	if name, ok := req.Value("user").(string); ok {
		return name, nil
	}
	name, _ := req.Value(userKey{}).(string)
	return name, nil
}

func (w *world) principalSet() {
	s := &adaptertest.Service{Handler: keysOf}
	s.Layers = locks(core.Serialize(w.locker(), "user/{ctx.user}/{id}",
		core.ContextFunc("user", user), core.PerPrincipal(user, 1, 1)))
	switch w.name {
	case "gin", "echo":
		s.User = "alice"
	default:
		s.Derive = func(ctx context.Context) context.Context { return context.WithValue(ctx, userKey{}, "alice") }
	}
	w.wantOK(w.start(w, s).Call(w.Context(), account("1")), "user/alice/1")
}

func (w *world) principalNotFound() {
	for i, guard := range []*core.Guard{
		core.Serialize(w.locker(), "user/{ctx.user}", core.ContextFunc("user", core.FromContext(userKey{}))),
		core.Serialize(w.locker(), "account/{id}", core.PerPrincipal(core.FromContext("user"), 1, 1)),
	} {
		logged := adaptertest.LogTo(w)
		_, client := w.serve(keysOf, guard)
		w.wantRefused(client.Call(w.Context(), account("1")), core.ReasonBadKey, false)
		if !strings.Contains(logged.String(), "finds nothing") {
			w.Errorf("rule %d: logged %q", i, logged)
		}
	}
}

func (w *world) principalWaits() {
	locker := w.locker()
	leave := w.hold(locker, "account/1")
	s, client := w.serve(keysOf, core.Serialize(locker, "account/{id}", core.Wait(time.Minute), core.PerPrincipal(tenant, 10, 1)))
	waiter := async(w.Context(), client, from("a", "1"))
	adaptertest.Queued(w, locker, 1)
	w.wantRefused(client.Call(w.Context(), from("a", "1")), core.ReasonPrincipalLimit, false)
	w.wantRefused(client.Call(w.Context(), from("a", "2")), core.ReasonPrincipalLimit, false)
	w.wantOK(client.Call(w.Context(), from("b", "2")), "account/2")
	leave()
	w.wantOK(adaptertest.Receive(w, waiter, "the waiter's turn"), "account/1")
	for range 4 {
		s.Visit(w)
	}
	w.wantOK(client.Call(w.Context(), from("a", "1")), "account/1")
}

func (w *world) principalPanics() {
	s, client := w.serve(func(context.Context, *adaptertest.Call) error { panic("x") },
		core.Serialize(w.locker(), "account/{id}", core.PerPrincipal(tenant, 1, 1)))
	for _, id := range []string{"1", "2", "3"} {
		if o := client.Call(w.Context(), from("a", id)); !o.Ran || o.Reason != "" {
			w.Errorf("%+v", o)
		}
		s.Visit(w)
	}
}

func (w *world) principalLeaves() {
	locker := w.locker()
	w.hold(locker, "account/1")
	s, client := w.serve(keysOf, core.Serialize(locker, "account/{id}", core.Wait(time.Minute), core.PerPrincipal(tenant, 1, 1)))
	ctx, cancel := context.WithCancel(w.Context())
	gone := async(ctx, client, from("a", "1"))
	adaptertest.Queued(w, locker, 1)
	cancel()
	adaptertest.Receive(w, gone, "the end of the one that left")
	s.Visit(w)
	w.wantOK(client.Call(w.Context(), from("a", "2")), "account/2")
}

func (w *world) maxHold() {
	s, client := w.serve(func(ctx context.Context, _ *adaptertest.Call) error {
		w.wantEnd(ctx, core.ErrMaxHold)
		return ctx.Err()
	}, core.Serialize(w.locker(), "account/{id}", core.MaxHold(10*time.Millisecond)))
	w.wantRefused(client.Call(w.Context(), account("1")), core.ReasonMaxHold, true)
	s.Visit(w)
	w.wantFree("account/1")
}

// restores makes the behaviour that middleware in front finds the request with
// its own context, which has not ended.
func restores(handler func(context.Context, *adaptertest.Call) error, ok bool) func(w *world) {
	return func(w *world) {
		guard := core.Serialize(w.locker(), "account/{id}")
		s, client := w.serve(handler, guard, guard)
		o := client.Call(w.Context(), account("1"))
		if v := s.Visit(w); !v.Restored || o.OK != ok {
			w.Errorf("%+v, %+v", o, v)
		}
	}
}

// multipart uploads a file that is too long for the server's memory.
func (w *world) multipart() {
	file := make(chan string, 1)
	s, client := w.serve(func(_ context.Context, call *adaptertest.Call) error {
		name, err := adaptertest.OnDisk(call.R)
		if err != nil {
			w.Error(err)
		}
		file <- name
		return nil
	}, core.Serialize(w.locker(), "account/{id}"))
	adaptertest.Upload(w, client.(*adaptertest.HTTPClient).Server, "/1/call")
	if v := s.Visit(w); v.After.MultipartForm == nil {
		w.Error("the original knows nothing of the form")
	}
	name := <-file
	adaptertest.Until(w, "the temporary file is removed", func() bool {
		_, err := os.Stat(name)
		return name != "" && errors.Is(err, os.ErrNotExist)
	})
}

func (w *world) hijacked() {
	s, client := w.serve(func(_ context.Context, call *adaptertest.Call) error {
		conn, rw, err := call.W.(http.Hijacker).Hijack()
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		_, err = rw.WriteString("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nraw")
		return errors.Join(err, rw.Flush())
	}, core.Serialize(w.locker(), "account/{id}"))
	w.wantOK(client.Call(w.Context(), account("1")), "raw")
	s.Visit(w)
	w.wantFree("account/1")
}

// streams makes the behaviour that each part of an answer reaches the client
// while the handler is still inside, and that the lock is held as long.
func streams(http bool, push func(*adaptertest.Call) error) func(w *world) {
	return func(w *world) {
		if w.http != http || !w.parts {
			return
		}
		locker := w.locker()
		next := make(chan struct{})
		s, client := w.serve(func(ctx context.Context, call *adaptertest.Call) error {
			for i := range 2 {
				if err := errors.Join(call.Send(fmt.Sprintf("part %d\n", i)), push(call)); err != nil {
					w.Error(err)
				}
				if err := adaptertest.Meet(ctx, next); err != nil {
					return err
				}
			}
			return nil
		}, core.Serialize(locker, "account/{id}"))
		w.reads(s, client, locker, next, []string{"part 0"}, []string{"part 1"})
	}
}

// reads reads an answer part by part; next lets the handler go on.
func (w *world) reads(s *adaptertest.Service, client adaptertest.Client, locker *core.Locker, next chan<- struct{}, parts ...[]string) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), adaptertest.Patience)
	defer cancel()
	stream, err := client.Open(ctx, account("1"))
	if err != nil {
		w.Fatal(err)
	}
	defer stream.Close()
	for _, lines := range parts {
		for _, want := range lines {
			if got, err := stream.Next(); got != want || err != nil {
				w.Fatalf("%q, %v; want %q", got, err, want)
			}
		}
		if _, err := locker.TryLock(ctx, "account/1"); !errors.Is(err, core.ErrHeld) {
			w.Errorf("%v; want the lock held while the handler streams", err)
		}
		select {
		case next <- struct{}{}:
		case <-ctx.Done():
			w.Fatal("the handler has gone")
		}
	}
	if got, err := stream.Next(); !errors.Is(err, io.EOF) {
		w.Errorf("%q, %v; want the end", got, err)
	}
	s.Visit(w)
	w.wantFree("account/1")
}

func (w *world) events() {
	locker := w.locker()
	next := make(chan struct{})
	s, client := w.serve(func(ctx context.Context, call *adaptertest.Call) error {
		call.W.Header().Set("Content-Type", "text/event-stream")
		for i := range 2 {
			if err := call.Send(fmt.Sprintf("event: tick\ndata: %d\n\n", i)); err != nil {
				w.Error(err)
			}
			_ = flush(call)
			if err := adaptertest.Meet(ctx, next); err != nil {
				return err
			}
		}
		return nil
	}, core.Serialize(locker, "account/{id}"))
	w.reads(s, client, locker, next, []string{"event: tick", "data: 0", ""}, []string{"event: tick", "data: 1", ""})
}

// spans looks at what a trace shows of calls that are granted, refused for the
// lock and refused for the key.
func (w *world) spans() {
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	observer, err := otellock.New(otellock.WithTracerProvider(provider))
	if err != nil {
		w.Fatal(err)
	}
	locker := w.locker(core.WithObserver(observer))
	parents := make(chan trace.SpanContext, 10)
	s := &adaptertest.Service{
		Layers: locks(core.Serialize(locker, "tenant/{header.X-Tenant}", core.Wait(0), core.Name("debit"))),
		Handler: func(ctx context.Context, call *adaptertest.Call) error {
			// What the handler does is not below the lock.
			span := trace.SpanContextFromContext(ctx)
			return call.Send(span.SpanID().String())
		},
		Derive: func(ctx context.Context) context.Context {
			ctx, span := provider.Tracer("test").Start(ctx, "server")
			parents <- span.SpanContext()
			return ctx
		},
	}
	client := w.start(w, s)
	call := func(tenant string) (o adaptertest.Outcome, parent trace.SpanContext, acquire, release tracetest.SpanStubs) {
		exporter.Reset()
		req := account("1")
		req.Header = [][2]string{{"X-Tenant", tenant}}
		o = client.Call(w.Context(), req)
		s.Visit(w) // after the release, and what is told of it
		parent = adaptertest.Receive(w, parents, "the server's span")
		for _, span := range exporter.GetSpans() {
			if span.Parent.SpanID() != parent.SpanID() || span.SpanContext.TraceID() != parent.TraceID() {
				w.Errorf("%s: not below the server's span", span.Name)
			}
			switch span.Name {
			case "lock acquire debit":
				acquire = append(acquire, span)
			case "lock release debit":
				release = append(release, span)
			default:
				w.Errorf("span %q", span.Name)
			}
		}
		return o, parent, acquire, release
	}

	o, parent, acquire, release := call("acme")
	w.wantOK(o, parent.SpanID().String())
	if len(acquire) != 1 || len(release) != 1 {
		w.Fatalf("granted: %d acquire spans, %d release spans", len(acquire), len(release))
	}
	hash := core.KeyHash("tenant/acme")
	token := value(acquire[0], "interlock.token")
	if token.AsInt64() == 0 || token != value(release[0], "interlock.token") {
		w.Errorf("tokens %v and %v", token, value(release[0], "interlock.token"))
	}
	w.wantSpan(acquire[0], codes.Unset,
		attribute.String("interlock.rule", "debit"),
		attribute.String("interlock.key_hash", hash),
		attribute.String("interlock.outcome", "granted"),
		attribute.Bool("interlock.contended", false),
		attribute.Bool("interlock.reentered", false),
		attribute.Int("interlock.attempts", 1))
	w.wantSpan(release[0], codes.Unset,
		attribute.String("interlock.rule", "debit"),
		attribute.String("interlock.key_hash", hash),
		attribute.String("interlock.outcome", "released"),
		attribute.Bool("interlock.handed_over", false))

	// By a locker of its own: an observer would see it as well.
	w.hold(w.locker(), "tenant/other")
	o, _, acquire, release = call("other")
	w.wantRefused(o, core.ReasonHeld, false)
	if len(acquire) != 1 || len(release) != 0 {
		w.Fatalf("held: %d acquire spans, %d release spans", len(acquire), len(release))
	}
	w.wantSpan(acquire[0], codes.Unset,
		attribute.String("interlock.rule", "debit"),
		attribute.String("interlock.key_hash", core.KeyHash("tenant/other")),
		attribute.String("interlock.outcome", "held"),
		attribute.Bool("interlock.contended", true),
		attribute.String("error.type", "held"))

	o, _, acquire, release = call("")
	w.wantRefused(o, core.ReasonBadKey, false)
	if len(acquire) != 1 || len(release) != 0 {
		w.Fatalf("bad key: %d acquire spans, %d release spans", len(acquire), len(release))
	}
	w.wantSpan(acquire[0], codes.Unset,
		attribute.String("interlock.rule", "debit"),
		attribute.String("interlock.outcome", "bad_key"),
		attribute.String("error.type", "bad_key"))

	if err := locker.Close(w.Context()); err != nil {
		w.Fatal(err)
	}
	o, _, acquire, _ = call("acme")
	w.wantRefused(o, core.ReasonClosing, false)
	if len(acquire) != 1 {
		w.Fatalf("closing: %d acquire spans", len(acquire))
	}
	w.wantSpan(acquire[0], codes.Error, // somebody should look at that one
		attribute.String("interlock.outcome", "closing"),
		attribute.String("error.type", "closing"))
}

// wantSpan looks for attributes, and for none that shows the key itself.
func (w *world) wantSpan(span tracetest.SpanStub, status codes.Code, want ...attribute.KeyValue) {
	w.Helper()
	if span.Status.Code != status {
		w.Errorf("%s: status %v; want %v", span.Name, span.Status, status)
	}
	for _, kv := range want {
		if got := value(span, kv.Key); got != kv.Value {
			w.Errorf("%s: %s is %s; want %s", span.Name, kv.Key, got.String(), kv.Value.String())
		}
	}
	for _, kv := range span.Attributes {
		if strings.Contains(kv.Value.String(), "tenant/") {
			w.Errorf("%s: %s shows the key: %s", span.Name, kv.Key, kv.Value.String())
		}
	}
}

func value(span tracetest.SpanStub, key attribute.Key) attribute.Value {
	for _, kv := range span.Attributes {
		if kv.Key == key {
			return kv.Value
		}
	}
	return attribute.Value{}
}
