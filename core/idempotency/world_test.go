package idempotency_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/observe"
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
		protocol: endpoint.HTTP, method: "POST", path: "/payments", key: []string{key}, scope: "alice", body: "pay 1",
	}
}

func (q request) Protocol() string                 { return q.protocol }
func (q request) Key() (string, error)             { return endpoint.ParseKey(q.key) }
func (q request) Target() (string, string, string) { return q.method, q.path, q.query }
func (q request) Origin() (string, string, string) { return q.host, cmp.Or(q.uri, q.path), q.query }
func (q request) Route() (string, bool)            { return q.path, !q.unmatched }
func (q request) Param(string) (string, error)     { return "", adapter.ErrNoParam }
func (q request) Header(string) []string           { return []string{q.scope} }
func (q request) Query(string) []string            { return nil }
func (q request) Native() any                      { return q }
func (q request) Value(any) any                    { return nil }

func (q request) Body(limit int64) ([]byte, error) {
	if int64(len(q.body)) > limit {
		return nil, adapter.ErrBodyLimit
	}
	return []byte(q.body), nil
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

// during makes one fault of all requests of an operation.
func during(op memstore.Op, f memstore.Fault) func(memstore.Request) memstore.Fault {
	return func(r memstore.Request) memstore.Fault {
		if r.Op == op {
			return f
		}
		return memstore.Fault{}
	}
}

// handler is the handler of the endpoint.
type handler func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool)

// answers makes a handler that answers with a status, and counts.
func answers(status int, n *int) handler {
	return func(context.Context, endpoint.Attempt) (endpoint.Response, bool) {
		*n++
		return endpoint.Response{
			Status: status, Header: map[string][]string{"X-Run": {fmt.Sprint(*n)}}, Body: fmt.Appendf(nil, "run %d", *n),
		}, true
	}
}

// result is what a client sees, in one line.
func serve(ctx context.Context, e *idempotency.Engine, q request, h handler) string {
	var own endpoint.Response
	var passed bool
	v := e.Do(ctx, q, endpoint.Handler{
		Run: func(ctx context.Context, a endpoint.Attempt) (r endpoint.Response, answered bool) {
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
	case v.Replay != nil && isInterim(q.protocol, v.Replay):
		return fmt.Sprintf("interim %d %s", v.Replay.Status, v.Replay.Body)
	case v.Replay != nil:
		return fmt.Sprintf("replay %d %s", v.Replay.Status, v.Replay.Body)
	case passed:
		return fmt.Sprintf("passed %d %s", own.Status, own.Body)
	}
	return fmt.Sprintf("%d %s", own.Status, own.Body)
}

// isInterim reports whether a replay is marked as an interim answer.
func isInterim(protocol string, r *endpoint.Response) bool {
	name := idempotency.InterimHeader
	if protocol == endpoint.GRPC {
		name = strings.ToLower(name)
	}
	return slices.Equal(r.Header[name], []string{"true"})
}

// world is a store and the engines on it.
type world struct {
	*testing.T
	store *memstore.Store
	notes *notes
}

// inBubble runs a test in fake time, and then checks that no record, lock or goroutine
// remains.
func inBubble(t *testing.T, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(&world{T: t, store: memstore.New(), notes: &notes{}})
	})
}

// engine is what a process has.
func (w *world) engine(opts ...idempotency.Option) *idempotency.Engine {
	w.Helper()
	return w.engineOn(w.store, opts...)
}

// engineOn is engine on another store, around the world's.
func (w *world) engineOn(store idempotency.Store, opts ...idempotency.Option) *idempotency.Engine {
	w.Helper()
	e, err := idempotency.New(store, append([]idempotency.Option{
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

// down makes requests of some kinds fail, or all.
func (w *world) down(ops ...memstore.Op) {
	w.store.Intercept(func(r memstore.Request) memstore.Fault {
		if len(ops) == 0 || slices.Contains(ops, r.Op) {
			return memstore.Unreachable
		}
		return memstore.Fault{}
	})
}

// record returns the one record that there is; nil if there is none.
func (w *world) record() *memstore.Record {
	w.Helper()
	switch all := w.store.Records(); len(all) {
	case 0:
		return nil
	case 1:
		return &all[0]
	default:
		w.Fatalf("several records: %+v", all)
		return nil
	}
}

// asked counts the requests that the store got.
func (w *world) asked() (n int) {
	for _, op := range []memstore.Op{
		memstore.Claim, memstore.Extend, memstore.Mark, memstore.Commit, memstore.Abandon, memstore.Resolve, memstore.Forget,
	} {
		n += w.store.Requests(op)
	}
	return n
}

// leave leaves a record with a response that another process has stored.
func (w *world) leave(e *idempotency.Engine, key, response string) {
	w.Helper()
	w.want(serve(w.Context(), e, post(key), func(context.Context, endpoint.Attempt) (endpoint.Response, bool) {
		w.store.TakeClaims(time.Hour)(response)
		return endpoint.Response{Status: 200}, true
	}), "ran, then idempotency-unavailable")
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

func (n *notes) Start(ctx context.Context, op observe.Operation) (context.Context, observe.Observation) {
	add := func(format string, args ...any) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.all = append(n.all, fmt.Sprintf(format, args...))
	}
	return ctx, observe.Observation{
		Decided: func(d observe.Decided) {
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
