package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
)

// request is a call of the tests.
type request struct {
	protocol, method, path, query string
	key                           []string
	scope                         string
	body                          string
	unmatched                     bool
	host, uri                     string
}

func post(key string) request {
	return request{
		protocol: idempotency.HTTP, method: "POST", path: "/payments", key: []string{key}, scope: "alice", body: "pay 1",
	}
}

func (q request) Protocol() string                 { return q.protocol }
func (q request) Key() []string                    { return q.key }
func (q request) Target() (string, string, string) { return q.method, q.path, q.query }
func (q request) Origin() (string, string, string) { return q.host, or(q.uri, q.path), q.query }
func (q request) Route() (string, bool)            { return q.path, !q.unmatched }
func (q request) Param(string) (string, error)     { return "", core.ErrNoParam }
func (q request) Header(string) []string           { return []string{q.scope} }
func (q request) Query(string) []string            { return nil }
func (q request) Native() any                      { return q }
func (q request) Value(any) any                    { return nil }

func (q request) Body(limit int64) ([]byte, error) {
	if int64(len(q.body)) > limit {
		return nil, core.ErrBodyLimit
	}
	return []byte(q.body), nil
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

var errScope = errors.New("the directory is down")

func scope(_ context.Context, req core.Request) (string, error) {
	s := req.Header("Authorization")[0]
	switch s {
	case "broken":
		return "", errScope
	case "not a name":
		return "", fmt.Errorf("%w: not a name", core.ErrKey)
	}
	return s, nil
}

// handler is what runs behind the endpoint.
type handler func(ctx context.Context, a *idempotency.Attempt) (idempotency.Response, bool)

// answers makes a handler that answers with a status, and counts.
func answers(status int, n *int) handler {
	return func(context.Context, *idempotency.Attempt) (idempotency.Response, bool) {
		*n++
		return idempotency.Response{
			Status: status, Header: map[string][]string{"X-Run": {fmt.Sprint(*n)}}, Body: fmt.Appendf(nil, "run %d", *n),
		}, true
	}
}

// result is what a client sees, in one line.
func serve(ctx context.Context, e *idempotency.Engine, q request, h handler) string {
	var own idempotency.Response
	var passed bool
	v := e.Do(ctx, q, idempotency.Handler{
		Run: func(ctx context.Context, a *idempotency.Attempt) (r idempotency.Response, answered bool) {
			own, answered = h(ctx, a)
			return own, answered
		},
		Pass: func(ctx context.Context) bool {
			passed = true
			own, _ = h(ctx, nil)
			return true
		},
	})
	switch {
	case v.Refusal != nil && v.Refusal.Ran:
		return "ran, then " + string(v.Refusal.Reason)
	case v.Refusal != nil:
		return string(v.Refusal.Reason)
	case v.Replay != nil:
		return fmt.Sprintf("replay %d %s", v.Replay.Status, v.Replay.Body)
	case passed:
		return fmt.Sprintf("passed %d %s", own.Status, own.Body)
	}
	return fmt.Sprintf("%d %s", own.Status, own.Body)
}

// world is a store and the engines on it.
type world struct {
	*testing.T
	store *fakeStore
	notes *notes
}

// inBubble runs a test in fake time, and then checks that nothing is left behind.
func inBubble(t *testing.T, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(&world{T: t, store: newFake(), notes: &notes{}})
	})
}

// engine is what a process has.
func (w *world) engine(opts ...idempotency.Option) *idempotency.Engine {
	w.Helper()
	e, err := idempotency.New(w.store, append([]idempotency.Option{
		idempotency.Scope(scope), idempotency.WithObserver(w.notes),
	}, opts...)...)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = e.Close(ctx)
	})
	return e
}

func (w *world) want(got, want string) {
	w.Helper()
	if got != want {
		w.Errorf("got %q, want %q", got, want)
	}
}

// notes is an observer that writes down the outcomes.
type notes struct {
	mu  sync.Mutex
	all []string
}

func (n *notes) Start(ctx context.Context, op core.Operation) (context.Context, core.Observation) {
	add := func(format string, args ...any) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.all = append(n.all, fmt.Sprintf(format, args...))
	}
	return ctx, core.Observation{
		Decided: func(d core.Decided) {
			if op.Keys != nil || !op.Unlocked {
				add("not an operation without a lock: %+v", op)
			}
			add("%s%s %d", d.Outcome, d.Reason, d.Generation)
		},
		Bypassed: func(error) { add("bypassed") },
	}
}

func (n *notes) take() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.all
	n.all = nil
	return all
}

func TestWhatIsStoredAndWhatIsReleased(t *testing.T) {
	released := []int{401, 408, 409, 425, 429, 500, 502, 503, 599}
	kept := []int{200, 201, 204, 301, 304, 400, 402, 403, 404, 410, 412, 422, 451, 499}
	grpcReleased := []int{1, 2, 4, 8, 10, 13, 14, 16}
	grpcKept := []int{0, 3, 5, 6, 7, 9, 11, 12, 15}
	both := func(a, b []int) []int { return slices.Concat(a, b) }
	mark := func(h handler) handler {
		return func(ctx context.Context, a *idempotency.Attempt) (idempotency.Response, bool) {
			if err := idempotency.MarkEffect(ctx); err != nil {
				t.Error(err)
			}
			return h(ctx, a)
		}
	}
	cases := map[string]struct {
		protocol string
		opts     []idempotency.Option
		mark     bool
		statuses []int
		stored   bool
	}{
		"released":             {idempotency.HTTP, nil, false, released, false},
		"kept":                 {idempotency.HTTP, nil, false, kept, true},
		"marked":               {idempotency.HTTP, nil, true, both(released, kept), true},
		"store all":            {idempotency.HTTP, []idempotency.Option{idempotency.StoreAll()}, false, both(released, kept), true},
		"strict, failures":     {idempotency.HTTP, []idempotency.Option{idempotency.Strict()}, false, []int{500, 503}, true},
		"strict, not carried":  {idempotency.HTTP, []idempotency.Option{idempotency.Strict()}, false, []int{401, 409, 429}, false},
		"gRPC released":        {idempotency.GRPC, nil, false, grpcReleased, false},
		"gRPC kept":            {idempotency.GRPC, nil, false, grpcKept, true},
		"gRPC marked":          {idempotency.GRPC, nil, true, grpcReleased, true},
		"gRPC strict, failure": {idempotency.GRPC, []idempotency.Option{idempotency.Strict()}, false, []int{1, 2, 4, 13, 14}, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				e := w.engine(c.opts...)
				for _, status := range c.statuses {
					n := 0
					h := answers(status, &n)
					if c.mark {
						h = mark(h)
					}
					q := post(fmt.Sprint("k", status))
					q.protocol = c.protocol
					w.want(serve(w.Context(), e, q, h), fmt.Sprintf("%d run 1", status))
					second := fmt.Sprintf("%d run 2", status)
					if c.stored {
						second = fmt.Sprintf("replay %d run 1", status)
					}
					w.want(serve(w.Context(), e, q, h), second)
				}
			})
		})
	}
}

func TestAPanicIsReleasedOrStoredAndPassesThrough(t *testing.T) {
	for name, c := range map[string]struct {
		mark  bool
		exit  bool
		opts  []idempotency.Option
		again string
	}{
		"unmarked":  {again: "200 run 1"},
		"marked":    {mark: true, again: `replay 500 {"type":"about:blank","title":"Internal Server Error","status":500}`},
		"strict":    {opts: []idempotency.Option{idempotency.Strict()}, again: `replay 500 {"type":"about:blank","title":"Internal Server Error","status":500}`},
		"store all": {opts: []idempotency.Option{idempotency.StoreAll()}, again: `replay 500 {"type":"about:blank","title":"Internal Server Error","status":500}`},
		"Goexit":    {exit: true, again: "200 run 1"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				e := w.engine(c.opts...)
				value := any("not run")
				done := make(chan struct{})
				go func() {
					defer close(done)
					defer func() { value = recover() }()
					serve(w.Context(), e, post("k"), func(ctx context.Context, _ *idempotency.Attempt) (idempotency.Response, bool) {
						if c.mark {
							if err := idempotency.MarkEffect(ctx); err != nil {
								t.Error(err)
							}
						}
						if c.exit {
							runtime.Goexit() // as t.FailNow in a handler does
						}
						panic("bank on fire")
					})
				}()
				<-done
				if value != any("bank on fire") && !c.exit {
					t.Errorf("recovered %v", value)
				}
				n := 0
				w.want(serve(w.Context(), e, post("k"), answers(200, &n)), c.again)
			})
		})
	}
}

func TestRequestsThatAreRefusedBeforeTheClaim(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine(idempotency.MaxRequest(5))
		n := 0
		for want, change := range map[string]func(*request){
			"idempotency-key-missing":      func(q *request) { q.key = nil },
			"idempotency-key-malformed":    func(q *request) { q.key = []string{""} },
			"idempotency-key-malformed ":   func(q *request) { q.key = []string{"a", "a"} },
			"idempotency-key-malformed  ":  func(q *request) { q.key = []string{strings.Repeat("k", 256)} },
			"idempotency-key-malformed   ": func(q *request) { q.key = []string{"a,b"} },
			"body-too-large":               func(q *request) { q.body = "123456" },
			"idempotency-no-principal":     func(q *request) { q.scope = "" },
			"internal":                     func(q *request) { q.scope = "broken" },
		} {
			q := post("k")
			change(&q)
			w.want(serve(w.Context(), e, q, answers(200, &n)), strings.TrimSpace(want))
		}
		if n != 0 || len(w.store.calls) != 0 {
			t.Errorf("the handler ran %d times, the store was asked %d times", n, len(w.store.calls))
		}
	})
}

func TestRequestsThatPassThrough(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine(idempotency.Optional())
		n := 0
		probe := func(ctx context.Context, _ *idempotency.Attempt) (idempotency.Response, bool) {
			if err := idempotency.MarkEffect(ctx); err != nil {
				t.Errorf("MarkEffect without a record: %v", err)
			}
			if g, k := idempotency.Generation(ctx), idempotency.DownstreamKey(ctx); g != 0 || k != "" {
				t.Errorf("generation %d, downstream key %q", g, k)
			}
			return answers(200, &n)(ctx, nil)
		}
		for name, change := range map[string]func(*request){
			"GET":      func(q *request) { q.method = "GET" },
			"HEAD":     func(q *request) { q.method = "HEAD" },
			"OPTIONS":  func(q *request) { q.method = "OPTIONS" },
			"no route": func(q *request) { q.unmatched = true },
			"no key":   func(q *request) { q.key = nil },
		} {
			q := post("k")
			change(&q)
			if got := serve(w.Context(), e, q, probe); !strings.HasPrefix(got, "passed") {
				t.Errorf("%s: %s", name, got)
			}
		}
		q := post("")
		w.want(serve(w.Context(), e, q, probe), "idempotency-key-malformed")
		if len(w.store.calls) != 0 {
			t.Errorf("the store was asked: %v", w.store.calls)
		}
		if err := idempotency.MarkEffect(t.Context()); !errors.Is(err, idempotency.ErrNoAttempt) {
			t.Errorf("MarkEffect outside: %v", err)
		}
	})
}

func TestBadConfigurationIsRefused(t *testing.T) {
	store := newFake()
	for name, opts := range map[string][]idempotency.Option{
		"no scope":        {},
		"nil scope":       {idempotency.Scope(nil)},
		"short lease":     {idempotency.Global(), idempotency.Lease(time.Millisecond)},
		"short retention": {idempotency.Global(), idempotency.Retention(time.Second)},
		"retention":       {idempotency.Global(), idempotency.Retention(0)},
		"max hold":        {idempotency.Global(), idempotency.MaxHold(0)},
		"wait":            {idempotency.Global(), idempotency.WaitReplay(-1)},
		"request":         {idempotency.Global(), idempotency.MaxRequest(-1)},
		"response":        {idempotency.Global(), idempotency.MaxResponse(-1)},
		"backlog":         {idempotency.Global(), idempotency.Backlog(-1)},
		"tombstone":       {idempotency.Global(), idempotency.Tombstone(-1)},
	} {
		if _, err := idempotency.New(store, opts...); !errors.Is(err, core.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := idempotency.New(nil, idempotency.Global()); !errors.Is(err, core.ErrConfig) {
		t.Errorf("nil store: %v", err)
	}
	e, err := idempotency.New(store, idempotency.Global())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if recover() == nil {
			t.Error("With took a bad option")
		}
	}()
	e.With(idempotency.Lease(0))
}

func TestALongHandlerKeepsItsClaim(t *testing.T) {
	inBubble(t, func(w *world) {
		e, other := w.engine(), w.engine()
		n := 0
		got := serve(w.Context(), e, post("k"), func(ctx context.Context, a *idempotency.Attempt) (idempotency.Response, bool) {
			for range 28 { // just under five minutes
				<-time.After(10*time.Second - time.Millisecond)
				w.want(serve(w.Context(), other, post("k"), answers(200, &n)), "idempotency-in-flight")
			}
			if ctx.Err() != nil {
				t.Error(context.Cause(ctx))
			}
			return answers(200, &n)(ctx, a)
		})
		w.want(got, "200 run 1")
		if k := w.store.count("extend"); k != 27 {
			t.Errorf("%d renewals in 280 s, want one every 10 s", k)
		}
		<-time.After(time.Minute)
		if k := w.store.count("extend"); k != 27 {
			t.Errorf("renewed after the end: %d", k)
		}
	})
}

func TestManyClaimsAreRenewedTogether(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		var wg sync.WaitGroup
		for i := range 500 {
			wg.Go(func() {
				serve(w.Context(), e, post(fmt.Sprint("k", i)), func(context.Context, *idempotency.Attempt) (idempotency.Response, bool) {
					<-time.After(25 * time.Second)
					return idempotency.Response{Status: 200}, true
				})
			})
		}
		wg.Wait()
		if k := w.store.count("extend"); k != 2 {
			t.Errorf("%d batches, want 2", k)
		}
	})
}

func TestALostClaimEndsTheHandlersContext(t *testing.T) {
	for name, c := range map[string]struct {
		lose  func(w *world)
		after time.Duration
		cause error
	}{
		"store down": {func(w *world) { w.store.down() }, 30*time.Second - 302*time.Millisecond, core.ErrLost},
		"taken over": {func(w *world) { w.store.steal() }, 10 * time.Second, core.ErrLost},
		"max hold":   {func(*world) {}, 2 * time.Minute, core.ErrMaxHold},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				e := w.engine(idempotency.MaxHold(2 * time.Minute))
				got := serve(w.Context(), e, post("k"), func(ctx context.Context, _ *idempotency.Attempt) (idempotency.Response, bool) {
					begin := time.Now()
					c.lose(w)
					<-ctx.Done()
					if cause := context.Cause(ctx); !errors.Is(cause, c.cause) {
						t.Errorf("ended with %v", cause)
					}
					if d := time.Since(begin); d != c.after {
						t.Errorf("ended after %v, want %v", d, c.after)
					}
					if err := idempotency.MarkEffect(ctx); !errors.Is(err, c.cause) {
						t.Errorf("MarkEffect: %v", err)
					}
					return idempotency.Response{Status: 500}, false
				})
				want := "ran, then lost"
				if c.cause == core.ErrMaxHold { //nolint:errorlint // the test's own
					want = "ran, then max-hold"
				}
				w.want(got, want)
				w.store.up()
				r := w.store.only(t)
				if r == nil || r.state != idempotency.StateInFlight {
					t.Fatalf("the claim was not kept: %+v", r)
				}
				if n := w.store.count("commit") + w.store.count("abandon"); n != 0 {
					t.Errorf("%d commits and releases", n)
				}
			})
		})
	}
}

func TestAHandlerThatEndsAfterTheLapse(t *testing.T) {
	inBubble(t, func(w *world) {
		e, other := w.engine(), w.engine()
		late := func(status int, meanwhile func()) handler {
			return func(ctx context.Context, _ *idempotency.Attempt) (idempotency.Response, bool) {
				w.store.down("extend")
				<-ctx.Done() // lost
				<-time.After(time.Second)
				meanwhile()
				return idempotency.Response{Status: status, Body: []byte("late")}, true
			}
		}
		n := 0
		w.want(serve(w.Context(), e, post("nobody"), late(201, func() {})), "201 late")
		w.want(serve(w.Context(), other, post("nobody"), answers(200, &n)), "replay 201 late")

		takeOver := func(key string) func() {
			return func() {
				want := fmt.Sprint("200 run ", n+1)
				w.want(serve(w.Context(), other, post(key), answers(200, &n)), want)
			}
		}
		w.want(serve(w.Context(), e, post("commit"), late(201, takeOver("commit"))), "replay 200 run 1")
		w.want(serve(w.Context(), e, post("fail"), late(500, takeOver("fail"))), "500 late")
		w.want(serve(w.Context(), e, post("fail"), answers(200, &n)), "replay 200 run 2")

		// The one that took over is still at work.
		release := make(chan struct{})
		var wg sync.WaitGroup
		w.want(serve(w.Context(), e, post("busy"), late(201, func() {
			wg.Go(func() {
				serve(w.Context(), other, post("busy"), func(ctx context.Context, a *idempotency.Attempt) (idempotency.Response, bool) {
					if g := idempotency.Generation(ctx); g != 2 {
						t.Errorf("generation %d", g)
					}
					<-release
					return answers(200, &n)(ctx, a)
				})
			})
			synctest.Wait()
		})), "ran, then idempotency-in-flight")
		close(release)
		wg.Wait()
		w.want(serve(w.Context(), e, post("busy"), answers(200, &n)), "replay 200 run 3")
	})
}

func TestATakeOverComparesTheRequestFirst(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		n := 0
		crash := func(key string, mark bool) {
			w.store.onCall(func(c call) fault { // nothing more is heard of it
				if c.op == "claim" || c.op == "mark" {
					return fault{}
				}
				return fault{err: core.ErrUnavailable, unsent: true}
			})
			dead := w.engine()
			serve(w.Context(), dead, post(key), func(ctx context.Context, _ *idempotency.Attempt) (idempotency.Response, bool) {
				if mark {
					if err := idempotency.MarkEffect(ctx); err != nil {
						t.Error(err)
					}
				}
				<-ctx.Done()
				return idempotency.Response{}, false
			})
			w.store.up()
		}
		crash("k", false)
		w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "idempotency-in-flight")
		<-time.After(time.Second) // the margin for clocks
		other := post("k")
		other.body = "pay 2"
		w.want(serve(w.Context(), e, other, answers(200, &n)), "idempotency-key-reused")
		w.want(serve(w.Context(), e.With(idempotency.Strict()), post("k"), answers(200, &n)), "idempotency-outcome-unknown")
		w.want(serve(w.Context(), e, post("k"), func(ctx context.Context, a *idempotency.Attempt) (idempotency.Response, bool) {
			if g := idempotency.Generation(ctx); g != 2 {
				t.Errorf("generation %d, want 2", g)
			}
			return answers(200, &n)(ctx, a)
		}), "200 run 1")

		crash("marked", true)
		<-time.After(time.Hour)
		w.want(serve(w.Context(), e, post("marked"), answers(200, &n)), "idempotency-outcome-unknown")
		if err := e.Forget(t.Context(), "alice", "marked"); err != nil {
			t.Fatal(err)
		}
		w.want(serve(w.Context(), e, post("marked"), answers(200, &n)), "200 run 2")
	})
}

func TestAClientThatGoesAwayEndsNothing(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		type key struct{}
		ctx, cancel := context.WithTimeout(context.WithValue(w.Context(), key{}, "v"), time.Hour)
		n := 0
		w.want(serve(ctx, e, post("k"), func(ctx context.Context, a *idempotency.Attempt) (idempotency.Response, bool) {
			cancel()
			synctest.Wait()
			if _, ok := ctx.Deadline(); ok || ctx.Err() != nil || ctx.Value(key{}) != "v" {
				t.Errorf("the handler's context: %v", ctx)
			}
			return answers(201, &n)(ctx, a)
		}), "201 run 1")
		w.want(serve(w.Context(), e, post("k"), answers(201, &n)), "replay 201 run 1")
	})
}

func TestAClientThatGoesAwayBeforeTheClaimLeavesNone(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		w.store.onCall(func(c call) fault {
			if c.op == "claim" {
				return fault{before: time.Second, after: time.Second}
			}
			return fault{}
		})
		ctx, cancel := context.WithCancel(w.Context())
		time.AfterFunc(500*time.Millisecond, cancel)
		n := 0
		w.want(serve(ctx, e, post("k"), answers(200, &n)), "canceled")
		<-time.After(3 * time.Second)
		if r := w.store.only(t); r != nil || n != 0 {
			t.Errorf("left behind: %+v; the handler ran %d times", r, n)
		}
	})
}

func TestAClaimWhoseTryMayStillComeIsGivenUpMoreThanOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		lost := idempotency.ClaimRequest{}
		w.store.onCall(func(c call) fault {
			if c.op == "claim" {
				lost = idempotency.ClaimRequest{ID: c.id, Token: c.token, Lease: 30 * time.Second, Retention: time.Hour}
				return fault{err: core.ErrUnavailable, unsent: true, maybe: true}
			}
			return fault{}
		})
		n := 0
		w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "idempotency-unavailable")
		<-time.After(5 * time.Second)
		w.store.mu.Lock()
		w.store.claim(lost, new(idempotency.ClaimReply)) // here it is
		w.store.mu.Unlock()
		<-time.After(6 * time.Second)
		if r := w.store.only(t); r != nil {
			t.Errorf("a claim of nobody: %+v", r)
		}
		<-time.After(time.Minute)
		if e.Pending() != 0 {
			t.Error("it is still given up")
		}
	})
}

func TestClosingDoesNotWaitForClaimsThatMayStillCome(t *testing.T) {
	for name, c := range map[string]struct {
		opt   idempotency.Option
		waits time.Duration
	}{"": {nil, 0}, "strict": {idempotency.Strict(), 40 * time.Second}} { // its rounds are a third of the lease
		inBubble(t, func(w *world) {
			e := w.engine(c.opt)
			w.store.onCall(func(c call) fault {
				if c.op == "claim" {
					return fault{err: core.ErrUnavailable, maybe: true}
				}
				return fault{}
			})
			n := 0
			w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "idempotency-unavailable")
			<-time.After(time.Second)
			before, begin := w.store.count("abandon"), time.Now()
			if err := e.Close(context.Background()); err != nil {
				t.Error(err)
			}
			took := time.Since(begin)
			if took > c.waits || took < c.waits/2 {
				t.Errorf("%s: closing took %v", name, took)
			}
			if w.store.count("abandon") == before || w.store.only(t) != nil {
				t.Errorf("%s: the claim was not given up once more", name)
			}
		})
	}
}

func TestAGrantAfterTheEndOfItsLeaseIsNoGrant(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine(idempotency.Lease(time.Second))
		w.store.onCall(func(c call) fault {
			if c.op == "claim" {
				return fault{after: 1500 * time.Millisecond}
			}
			return fault{}
		})
		n := 0
		w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "idempotency-unavailable")
		synctest.Wait()
		if r := w.store.only(t); r != nil || n != 0 {
			t.Errorf("left behind: %+v; the handler ran %d times", r, n)
		}
	})
}

func TestAStoreThatIsDownBeforeRefusesOrFailsOpen(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		w.store.down()
		n := 0
		w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "idempotency-unavailable")
		if n != 0 {
			t.Error("the handler ran")
		}
		w.notes.take()
		open := e.With(idempotency.FailOpen())
		key := ""
		w.want(serve(w.Context(), open, post("k"), func(ctx context.Context, _ *idempotency.Attempt) (idempotency.Response, bool) {
			key = idempotency.DownstreamKey(ctx)
			if err := idempotency.MarkEffect(ctx); err != nil {
				t.Error(err)
			}
			return answers(200, &n)(ctx, nil)
		}), "passed 200 run 1")
		if got := w.notes.take(); !slices.Equal(got, []string{"bypassed"}) {
			t.Errorf("observed %v", got)
		}
		w.store.up()
		serve(w.Context(), e, post("k"), func(ctx context.Context, a *idempotency.Attempt) (idempotency.Response, bool) {
			if again := idempotency.DownstreamKey(ctx); again != key || key == "" {
				t.Errorf("downstream keys %q and %q", key, again)
			}
			return answers(200, &n)(ctx, a)
		})
		w.store.damage("rubbish")
		w.want(serve(w.Context(), open, post("k"), answers(200, &n)), "idempotency-unavailable")
		if n != 2 {
			t.Errorf("ran %d times", n)
		}
	})
}

func TestAnAnswerThatCannotBeStoredIsSentAndStoredLater(t *testing.T) {
	inBubble(t, func(w *world) {
		e, other := w.engine(), w.engine()
		w.store.down("commit", "extend")
		n := 0
		w.want(serve(w.Context(), e, post("k"), answers(201, &n)), "201 run 1")
		if e.Pending() != 1 {
			t.Errorf("%d pending", e.Pending())
		}
		<-time.After(29 * time.Second)
		w.store.down("commit") // renewals go through again: nobody takes over
		<-time.After(5 * time.Minute)
		w.want(serve(w.Context(), other, post("k"), answers(201, &n)), "idempotency-in-flight")
		w.store.up()
		<-time.After(3 * time.Second)
		w.want(serve(w.Context(), other, post("k"), answers(201, &n)), "replay 201 run 1")
		if e.Pending() != 0 || w.store.count("abandon") != 0 {
			t.Errorf("%d pending, %d releases", e.Pending(), w.store.count("abandon"))
		}
		k := w.store.count("extend")
		<-time.After(time.Hour)
		if w.store.count("extend") != k {
			t.Error("it is renewed still")
		}
		if got := w.notes.take(); !slices.Contains(got, "pending 1") {
			t.Errorf("observed %v", got)
		}
	})
}

func TestAnAnswerIsGivenUpWhenAnotherTookOver(t *testing.T) {
	inBubble(t, func(w *world) {
		e, other := w.engine(), w.engine()
		n := 0
		w.want(serve(w.Context(), e, post("k"), func(ctx context.Context, a *idempotency.Attempt) (idempotency.Response, bool) {
			w.store.down() // cut off for as long as it takes
			return answers(201, &n)(ctx, a)
		}), "201 run 1")
		<-time.After(31 * time.Second)
		var mended atomic.Bool
		w.store.onCall(func(c call) fault {
			if !mended.Load() && c.op != "claim" {
				return fault{err: core.ErrUnavailable, unsent: true}
			}
			return fault{}
		})
		w.want(serve(w.Context(), other, post("k"), func(ctx context.Context, a *idempotency.Attempt) (idempotency.Response, bool) {
			mended.Store(true)
			return answers(200, &n)(ctx, a)
		}), "200 run 2")
		<-time.After(3 * time.Second)
		if e.Pending() != 0 {
			t.Error("it is still tried")
		}
		w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "replay 200 run 2")
	})
}

func TestTheBacklogIsBounded(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine(idempotency.Backlog(10 << 10))
		w.store.down("commit")
		for i := range 20 {
			serve(w.Context(), e, post(fmt.Sprint("k", i)), func(context.Context, *idempotency.Attempt) (idempotency.Response, bool) {
				return idempotency.Response{Status: 200, Body: make([]byte, 4<<10)}, true
			})
		}
		w.store.up()
		<-time.After(5 * time.Second)
		n, replayed, unavailable := 0, 0, 0
		for i := range 20 {
			switch got := serve(w.Context(), e, post(fmt.Sprint("k", i)), answers(200, &n)); {
			case strings.HasPrefix(got, "replay 200"):
				replayed++
			case got == "idempotency-response-unavailable":
				unavailable++
			default:
				t.Error(got)
			}
		}
		if replayed != 1 || unavailable != 19 {
			t.Errorf("%d replayed, %d unavailable", replayed, unavailable)
		}
	})
}

func TestMarkEffectFailsWhereTheEffectMustNotHappen(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		n := 0
		try := func(key string, before func(), want error) handler {
			return func(ctx context.Context, a *idempotency.Attempt) (idempotency.Response, bool) {
				before()
				err := idempotency.MarkEffect(ctx)
				if !errors.Is(err, want) {
					t.Errorf("%s: %v", key, err)
				}
				if strings.Contains(fmt.Sprint(err), key) {
					t.Errorf("the error shows the key: %v", err)
				}
				if want == core.ErrLost && !errors.Is(context.Cause(ctx), want) { //nolint:errorlint // the test's own
					t.Errorf("the context has not ended: %v", context.Cause(ctx))
				}
				return answers(503, &n)(ctx, a)
			}
		}
		w.want(serve(w.Context(), e, post("secret-1"), try("secret-1", func() { w.store.down("mark") }, core.ErrUnavailable)), "503 run 1")
		w.store.up()
		// The effect did not happen, so the claim was given up.
		w.want(serve(w.Context(), e, post("secret-1"), answers(200, &n)), "200 run 2")
		w.want(serve(w.Context(), e, post("secret-2"), try("secret-2", w.store.steal, core.ErrLost)), "503 run 3")

		left := make(chan context.Context, 1)
		serve(w.Context(), e, post("k3"), func(ctx context.Context, a *idempotency.Attempt) (idempotency.Response, bool) {
			left <- ctx
			return answers(500, &n)(ctx, a)
		})
		if err := idempotency.MarkEffect(<-left); !errors.Is(err, core.ErrLost) {
			t.Errorf("after the handler has returned: %v", err)
		}
	})
}

func TestTheDownstreamKeyIsTheSameInEveryAttempt(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		seen := map[string]bool{}
		var first string
		for i := range 3 {
			serve(w.Context(), e, post("k"), func(ctx context.Context, _ *idempotency.Attempt) (idempotency.Response, bool) {
				key := idempotency.DownstreamKey(ctx)
				if i == 0 {
					first = key
				}
				if key != first || len(key) != 36 || key[14] != '8' {
					t.Errorf("%q, the first was %q", key, first)
				}
				for _, k := range []string{key, idempotency.DownstreamKey(ctx, "fee"), idempotency.DownstreamKey(ctx, "f", "ee")} {
					seen[k] = true
				}
				return idempotency.Response{Status: 500}, true
			})
		}
		if len(seen) != 3 {
			t.Errorf("%d keys for three steps: %v", len(seen), seen)
		}
	})
}

func TestADuplicateWaitsAndGetsTheAnswer(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine(idempotency.WaitReplay(10 * time.Second))
		n := 0
		slow := func(status int, d time.Duration) handler {
			return func(ctx context.Context, a *idempotency.Attempt) (idempotency.Response, bool) {
				<-time.After(d)
				return answers(status, &n)(ctx, a)
			}
		}
		both := func(key string, first, second handler, wants ...string) time.Duration {
			t.Helper()
			var wg sync.WaitGroup
			wg.Go(func() { w.want(serve(w.Context(), e, post(key), first), wants[0]) })
			synctest.Wait()
			begin := time.Now()
			w.want(serve(w.Context(), e, post(key), second), wants[1])
			d := time.Since(begin)
			wg.Wait()
			return d
		}
		if d := both("done", slow(201, 5*time.Second), answers(200, &n), "201 run 1", "replay 201 run 1"); d != 5*time.Second {
			t.Errorf("woken after %v", d)
		}
		both("failed", slow(500, 5*time.Second), answers(200, &n), "500 run 2", "200 run 3")
		both("slow", slow(201, 20*time.Second), answers(200, &n), "201 run 4", "idempotency-in-flight")

		var wg sync.WaitGroup
		wg.Go(func() { serve(w.Context(), e, post("gone"), slow(201, 5*time.Second)) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		w.want(serve(ctx, e, post("gone"), answers(200, &n)), "idempotency-in-flight")
		wg.Wait()
		if len(w.store.watchers) > 0 {
			for id, left := range w.store.watchers {
				if len(left) > 0 {
					t.Errorf("%s is still watched", id)
				}
			}
		}
	})
}

func TestTombstonesRefuseKeysThatExpired(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine(idempotency.Retention(time.Hour), idempotency.Tombstone(time.Hour))
		n := 0
		w.want(serve(w.Context(), e, post("k"), answers(201, &n)), "201 run 1")
		<-time.After(59 * time.Minute)
		w.want(serve(w.Context(), e, post("k"), answers(201, &n)), "replay 201 run 1")
		<-time.After(2 * time.Minute) // the replay has not prolonged it
		w.want(serve(w.Context(), e, post("k"), answers(201, &n)), "idempotency-key-expired")
		<-time.After(time.Hour)
		w.want(serve(w.Context(), e, post("k"), answers(201, &n)), "201 run 2")
	})
}

func TestAnAnswerThatIsTooLargeIsNotStored(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine(idempotency.MaxResponse(100))
		big := func(status int, early bool, before func()) handler {
			return func(_ context.Context, a *idempotency.Attempt) (idempotency.Response, bool) {
				before()
				r := idempotency.Response{Status: status, Body: make([]byte, 101)}
				if early { // the capture noticed, and has sent what it had
					if first := a.TooLarge(status); a.TooLarge(status) != first {
						t.Error("TooLarge changes its mind")
					}
					r.Body = nil
				}
				return r, true
			}
		}
		for _, early := range []bool{false, true} {
			key := fmt.Sprint("k", early)
			n := 0
			got := serve(w.Context(), e, post(key), big(200, early, func() {}))
			if !strings.HasPrefix(got, "200 ") {
				t.Errorf("early %v: %q", early, got)
			}
			w.want(serve(w.Context(), e, post(key), answers(200, &n)), "idempotency-response-unavailable")
			serve(w.Context(), e, post(key+"-500"), big(500, early, func() {}))
			w.want(serve(w.Context(), e, post(key+"-500"), answers(200, &n)), "200 run 1")
			// Another took over before the first byte: nothing of ours may leave.
			w.want(serve(w.Context(), e, post(key+"-lost"), big(200, early, w.store.steal)), "ran, then idempotency-in-flight")
			w.store.down("commit")
			serve(w.Context(), e, post(key+"-down"), big(200, early, func() {}))
			w.store.up()
			<-time.After(5 * time.Second)
			w.want(serve(w.Context(), e, post(key+"-down"), answers(200, &n)), "idempotency-response-unavailable")
		}
		w.want(serve(w.Context(), e, post("fits"), func(context.Context, *idempotency.Attempt) (idempotency.Response, bool) {
			return idempotency.Response{Status: 200, Body: []byte(strings.Repeat("x", 100))}, true
		}), "200 "+strings.Repeat("x", 100))
		n := 0
		w.want(serve(w.Context(), e, post("fits"), answers(200, &n)), "replay 200 "+strings.Repeat("x", 100))
	})
}

func TestOnlyTheResponsesOwnHeadersAreLeftOut(t *testing.T) {
	header := map[string][]string{
		"Content-Type": {"text/plain"}, "Location": {"/payments/1"}, "Link": {"<a>", "<b>, <c>"}, "Empty": {""},
		"Set-Cookie": {"s=1"}, "Date": {"now"}, "Content-Length": {"3"}, "Connection": {"close, X-Hop", "x-other-hop"},
		"X-Hop": {"1"}, "X-Other-Hop": {"1"}, "Transfer-Encoding": {"chunked"}, "Traceparent": {"00-1"},
		"X-Request-Id": {"r"}, "RateLimit-Remaining": {"9"}, "X-Ratelimit-Limit": {"10"}, "Idempotent-Replayed": {"true"},
	}
	inBubble(t, func(w *world) {
		e := w.engine()
		replay := func(e *idempotency.Engine, key string) (r *idempotency.Response) {
			h := idempotency.Handler{Run: func(context.Context, *idempotency.Attempt) (idempotency.Response, bool) {
				return idempotency.Response{Status: 201, Header: header, Trailer: map[string][]string{"X-Sum": {"1"}, "Date": {"x"}}}, true
			}}
			e.Do(w.Context(), post(key), h)
			return e.Do(w.Context(), post(key), h).Replay
		}
		got := replay(e, "k")
		if want := map[string][]string{
			"Content-Type": {"text/plain"}, "Location": {"/payments/1"}, "Link": {"<a>", "<b>, <c>"}, "Empty": {""},
			"Content-Length": {"3"}, // for the adapter, which says how long the replay is
		}; !reflect.DeepEqual(got.Header, want) {
			t.Errorf("header %v", got.Header)
		}
		if want := map[string][]string{"X-Sum": {"1"}}; !reflect.DeepEqual(got.Trailer, want) {
			t.Errorf("trailer %v", got.Trailer)
		}
		got = replay(e.With(idempotency.ReplayHeaders("location", "date")), "l")
		if want := map[string][]string{"Location": {"/payments/1"}, "Date": {"now"}, "Content-Length": {"3"}}; !reflect.DeepEqual(got.Header, want) {
			t.Errorf("allow-list: %v", got.Header)
		}
	})
}

func TestCloseDrains(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		n := 0
		release := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			w.want(serve(w.Context(), e, post("k"), func(ctx context.Context, a *idempotency.Attempt) (idempotency.Response, bool) {
				<-release
				return answers(201, &n)(ctx, a)
			}), "201 run 1")
		})
		synctest.Wait()
		closed := make(chan error, 1)
		go func() { closed <- e.Close(context.Background()) }()
		synctest.Wait()
		w.want(serve(w.Context(), e, post("l"), answers(200, &n)), "closing")
		<-time.After(time.Minute) // renewed meanwhile
		w.store.down("commit")
		close(release)
		wg.Wait()
		<-time.After(time.Minute)
		select {
		case err := <-closed:
			t.Fatalf("closed with an answer that is not stored: %v", err)
		default:
		}
		w.store.up()
		if err := <-closed; err != nil {
			t.Error(err)
		}
		w.want(serve(w.Context(), w.engine(), post("k"), answers(200, &n)), "replay 201 run 1")
	})
}

func TestCloseThatIsCutShortEndsTheHandlers(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		var wg sync.WaitGroup
		wg.Go(func() {
			w.want(serve(w.Context(), e, post("k"), func(ctx context.Context, _ *idempotency.Attempt) (idempotency.Response, bool) {
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), core.ErrClosed) {
					t.Error(context.Cause(ctx))
				}
				return idempotency.Response{}, false
			}), "ran, then lost")
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := e.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		wg.Wait()
		if r := w.store.only(t); r == nil || r.state != idempotency.StateInFlight {
			t.Errorf("the claim was not left: %+v", r)
		}
	})
}

func TestTheObserverHearsHowEachRequestEnded(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		n := 0
		serve(w.Context(), e, post("k"), answers(200, &n))
		serve(w.Context(), e, post("k"), answers(200, &n))
		serve(w.Context(), e, post("l"), answers(500, &n))
		q := post("k")
		q.body = "other"
		serve(w.Context(), e, q, answers(200, &n))
		serve(w.Context(), e, post(""), answers(200, &n))
		want := []string{
			"stored 1", "replayed 0", "released 1", "refusedidempotency-key-reused 0", "refusedidempotency-key-malformed 0",
		}
		if got := w.notes.take(); !slices.Equal(got, want) {
			t.Errorf("observed %q", got)
		}
	})
}
