package interlock_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/echolock"
	"github.com/interlock-go/interlock/ginlock"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/internal/adaptertest"
	"github.com/interlock-go/interlock/internal/frameworks"
	"github.com/interlock-go/interlock/internal/redistest"
)

// One rule means the same in every framework: the same key, the same waiting,
// the same refusals, the same spans. This file is one table of behaviours that
// is run over the list of frameworks.

// behaviours are what holds in every framework.
var behaviours = []struct {
	name  string
	holds func(w *world)
}{
	{"calls for one key run one after the other, those for other keys beside", (*world).exclusion},
	{"transfers in opposite directions end and keep the sum", (*world).transfers},
	{"a handler re-enters its own lock", (*world).reentry},

	{"calls that share run together, and a writer alone", (*world).sharing},
	{"a writer that waits comes before calls that share later", (*world).writerFirst},
	{"at most n calls run at once, over all processes", (*world).permits},
	{"all permits taken, no wait", (*world).full},
	{"a permit that an exclusive holder keeps out", (*world).permitHeldOut},
	{"a handler re-enters its shared lock and its permit", (*world).reenterPlaces},
	{"a handler that shares cannot have the lock for itself", (*world).upgrade},
	{"requests that read share, others run alone", onlyHTTP((*world).shareReads)},
	{"a shared lock is free after a panic", panicsUnder("a value", func(l *core.Locker) *core.Guard { return core.Share(l, "account/{id}", core.Wait(time.Minute)) })},
	{"a permit is free after a panic", panicsUnder("a value", func(l *core.Locker) *core.Guard { return core.AtMost(l, 1, "account/{id}", core.Wait(time.Minute)) })},

	// However a handler ends, the lock is free when the call comes out of it.
	{"free after a return", ends(true, func(context.Context, *adaptertest.Call) error { return nil })},
	{"free after an answer", ends(true, say("done"))},
	{"free after an error", ends(false, func(context.Context, *adaptertest.Call) error { return adaptertest.ErrHandler })},
	{"free after the handler has released it", ends(true, func(ctx context.Context, call *adaptertest.Call) error {
		return errors.Join(core.LeaseFromContext(ctx).Release(ctx), call.Send("done"))
	})},
	{"free after a panic, which passes through", panics("a value")},
	{"free after a panic with an error, which passes through", panics(io.ErrUnexpectedEOF)},
	{"free after http.ErrAbortHandler, which passes through", panics(http.ErrAbortHandler)},
	{"free after the client has left the handler", (*world).disconnect},

	// A client that leaves while it waits makes room at once.
	{"waiter leaves, empty body", leaves(http1, "")},
	{"waiter leaves, body read", onlyHTTP(leaves(bodyRead, "body"))},
	{"waiter leaves, HTTP/2 and body unread", onlyHTTP(leaves(http2, "body"))},
	{"waiter that left is not granted the lock", (*world).leftBehind},

	// Refusals: the handler does not run, and the answer is that of the table.
	{"held, no wait", refusal{want: reason.Held, held: true, opts: []core.GuardOption{core.Wait(0)}}.holds},
	{"held until the wait is over", refusal{want: reason.Held, held: true, opts: []core.GuardOption{core.Wait(10 * time.Millisecond)}}.holds},
	{"queue full", (*world).queueFull},
	{"principal holds as many locks as it may", (*world).principalHolds},
	{"principal waits as often as it may", (*world).principalWaits},
	{"principal has its share back after a panic", (*world).principalPanics},
	{"principal has its share back after it left the queue", (*world).principalLeaves},
	{"principal where authentication leaves it in the framework", (*world).principalSet},
	{"principal that is not found is logged", (*world).principalNotFound},
	{"principal missing", refusal{want: reason.BadKey, opts: []core.GuardOption{core.PerPrincipal(tenant, 1, 1)}}.holds},
	{"principal cannot be found", refusal{want: reason.Internal, opts: []core.GuardOption{
		core.PerPrincipal(func(context.Context, core.Request) (string, error) { return "", io.ErrUnexpectedEOF }, 1, 1),
	}}.holds},
	{"own deadline over while queued", (*world).deadline},
	{"locker closed", refusal{want: reason.Closing, closed: true}.holds},
	{"locker closes while the call is queued", (*world).closing},
	{"store down", refusal{want: reason.Unavailable, down: true, opts: []core.GuardOption{core.Wait(10 * time.Millisecond)}}.holds},
	{"store down, no wait", refusal{want: reason.Unavailable, down: true, opts: []core.GuardOption{core.Wait(0)}}.holds},
	{"store down, and the rule fails open", (*world).failOpen},
	{"header of the key missing", refusal{want: reason.BadKey, template: "tenant/{header.X-Tenant}"}.holds},
	{"header of the key empty", refusal{want: reason.BadKey, template: "tenant/{header.X-Tenant}", header: []string{""}}.holds},
	{"header of the key given twice", refusal{want: reason.BadKey, template: "tenant/{header.X-Tenant}", header: []string{"a", "b"}}.holds},
	{"query of the key missing", refusal{want: reason.BadKey, template: "query/{query.q}"}.holds},
	{"query of the key empty", refusal{want: reason.BadKey, template: "query/{query.q}", query: "q="}.holds},
	{"query of the key malformed", refusal{want: reason.BadKey, template: "query/{query.q}", query: "q=%zz"}.holds},
	{"query of the key given twice", refusal{want: reason.BadKey, template: "query/{query.q}", query: "q=a&q=b"}.holds},
	{"parameter empty", (*world).emptyParam},
	{"key too long", refusal{want: reason.BadKey, id: strings.Repeat("x", 505)}.holds},
	{"key too long once it is escaped", refusal{want: reason.BadKey, id: strings.Repeat("ö", 85)}.holds},
	{"parameter that the route does not have", refusal{want: reason.Misconfigured, template: "account/{nope}"}.holds},
	{"body too large for the KeyFunc", refusal{want: reason.BodyTooLarge, id: "12345", keyFunc: func(_ context.Context, req core.Request) ([]string, error) {
		_, err := req.Body(4)
		return nil, err
	}}.holds},
	{"KeyFunc fails", refusal{want: reason.Internal, keyFunc: func(context.Context, core.Request) ([]string, error) {
		return nil, io.ErrUnexpectedEOF
	}}.holds},

	{"one value is one key, whatever is in it", (*world).keys},
	{"header makes the key", (*world).headerKey},
	{"body makes the key, and reaches the handler", onlyHTTP((*world).bodyKey)},

	// The handler ran, and its lock was not what it thought.
	{"lease lost before the answer", (*world).lostBefore},
	{"lease lost before the answer, of which the header was described", onlyHTTP((*world).lostDescribed)},
	{"lease lost, and the handler answers itself", onlyHTTP((*world).lostOwn)},
	{"lease lost after the answer", lostAfter(func(c *adaptertest.Call) error { return c.Send("done") }, "done")},
	{"lease lost after the header was flushed", onlyHTTP(lostAfter(flush, ""))},
	{"lease lost before an answer that is checked", lostChecked(func(c *adaptertest.Call) error { return c.Send("done") })},
	{"lease lost before an answer that is checked, and flushed", onlyHTTP(lostChecked(flush))},
	{"lease lost before an answer that is checked, and panics", onlyHTTP((*world).lostCheckedPanic)},
	{"lease lost, and the handler returns without an answer", (*world).lostSilent},
	{"answer that is checked while the lock is held", (*world).checked},
	{"commit after the lease is lost does not happen", (*world).lostCommit},
	{"maximum hold before the answer", (*world).maxHold},

	{"request is as it was after an answer", restores(say("done"), true)},
	{"request is as it was after an error", restores(func(context.Context, *adaptertest.Call) error { return adaptertest.ErrHandler }, false)},
	{"multipart form goes to the request that the server cleans up", onlyHTTP((*world).multipart)},

	{"parts sent by a stream", streams(false, func(*adaptertest.Call) error { return nil })},
	{"parts flushed by http.Flusher", streams(true, flush)},
	{"parts flushed by http.ResponseController", streams(true, func(c *adaptertest.Call) error {
		rc := http.NewResponseController(c.W)
		return errors.Join(rc.SetWriteDeadline(time.Now().Add(time.Minute)), rc.EnableFullDuplex(), rc.Flush())
	})},
	{"server-sent events", onlyHTTP((*world).events)},
	{"connection taken over", onlyHTTP((*world).hijacked)},

	{"one acquire span and one release span a call", (*world).spans},
}

func TestEveryFrameworkBehavesTheSame(t *testing.T) {
	quiet(t)
	rdb := redistest.Shared(t).Client(t)
	for _, b := range behaviours {
		t.Run(b.name, func(t *testing.T) {
			for _, a := range frameworks.All {
				t.Run(a.Label, func(t *testing.T) { b.holds(newWorld(t, a, rdb)) })
			}
		})
	}
}

func TestEveryReasonHasItsAnswer(t *testing.T) {
	ctx := t.Context()
	for _, reason := range reasons(t) {
		want, known := frameworks.Answers[reason]
		if !known {
			t.Errorf("%s is not in the table", reason)
			continue
		}
		for _, ran := range []bool{false, true} {
			if ran {
				want.HTTPRetry, want.GRPCRetry = "", ""
			}
			refusal := &core.Refusal{Reason: reason, Ran: ran}
			for name, write := range map[string]func(w *httptest.ResponseRecorder){
				"net/http": func(w *httptest.ResponseRecorder) { httplock.Problem(w, nil, refusal) },
				"gin":      func(w *httptest.ResponseRecorder) { c, _ := gin.CreateTestContext(w); ginlock.Problem(c, refusal) },
				"echo": func(w *httptest.ResponseRecorder) {
					e := echo.New()
					c := e.NewContext(httptest.NewRequestWithContext(ctx, http.MethodPost, "/", http.NoBody), w)
					if err := echolock.Problem(c, refusal); err != nil {
						e.DefaultHTTPErrorHandler(err, c)
					}
				},
			} {
				w := httptest.NewRecorder()
				write(w)
				code, retry := strconv.Itoa(w.Code), w.Header().Get("Retry-After")
				if w.Body.Len() == 0 {
					code = "" // the client has gone
				} else if !strings.Contains(w.Body.String(), `"urn:interlock:problem:`+string(reason)+`"`) {
					t.Errorf("%s, %s: %s", reason, name, w.Body)
				}
				if code != want.HTTP || retry != strings.TrimSuffix(want.HTTPRetry, "s") {
					t.Errorf("%s, %s, ran %v: %q, Retry-After %q; want %+v", reason, name, ran, code, retry, want)
				}
			}
			st := status.Convert(grpclock.Status(ctx, "/a/b", refusal))
			said, retry := "", ""
			for _, d := range st.Details() {
				switch d := d.(type) {
				case *errdetails.ErrorInfo:
					said = d.GetReason()
				case *errdetails.RetryInfo:
					retry = d.GetRetryDelay().AsDuration().String()
				}
			}
			if st.Code().String() != want.GRPC || retry != want.GRPCRetry || said != string(reason) {
				t.Errorf("%s, gRPC, ran %v: %v, retry %q; want %+v", reason, ran, st, retry, want)
			}
		}
	}
}

// reasons are all that package reason has.
func reasons(t *testing.T) (all []reason.Reason) {
	file, err := parser.ParseFile(token.NewFileSet(), "core/reason/reason.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, reason.Reason(text))
		return true
	})
	if len(all) != len(frameworks.Answers) {
		t.Errorf("%d reasons found, and %d answers in the table", len(all), len(frameworks.Answers))
	}
	return all
}

// TestOneRuleExcludesAcrossFrameworks lets a call of each framework wait for one
// of each other: an RPC debit for a REST debit. The two are in processes of
// their own, as far as locks go: nothing but the key in Redis connects them.
func TestOneRuleExcludesAcrossFrameworks(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	w := newWorld(t, frameworks.Framework{}, rdb)
	lockers := [2]*core.Locker{w.locker(), w.locker()}
	inside, leave := make(chan struct{}, 1), make(chan struct{})
	var clients [2][]adaptertest.Client
	handlers := [2]func(context.Context, *adaptertest.Call) error{
		func(ctx context.Context, _ *adaptertest.Call) error { // holds
			inside <- struct{}{}
			return adaptertest.Meet(ctx, leave)
		},
		keysOf, // waits
	}
	for i, handler := range handlers {
		for _, a := range frameworks.All {
			w.Framework = a
			_, client := w.serve(handler, core.Serialize(lockers[i], "account/{id}", core.Wait(time.Minute)))
			clients[i] = append(clients[i], client)
		}
	}
	for i, holder := range frameworks.All {
		for j, waiter := range frameworks.All {
			t.Run(waiter.Label+" waits for "+holder.Label, func(t *testing.T) {
				// A slash and a percent sign, which a path has to escape and a message not.
				id := fmt.Sprintf("a/b%%%d-%d", i, j)
				key, err := core.Key("account", id)
				if err != nil {
					t.Fatal(err)
				}
				first := async(t.Context(), clients[0][i], account(id))
				adaptertest.Receive(t, inside, "the holder")
				second := async(t.Context(), clients[1][j], account(id))
				adaptertest.Queued(t, lockers[1], 1)
				select {
				case o := <-second:
					t.Errorf("%+v, though the lock is held", o)
				default:
				}
				leave <- struct{}{}
				if o := adaptertest.Receive(t, first, "the holder's end"); !o.OK {
					t.Errorf("%+v", o)
				}
				if o := adaptertest.Receive(t, second, "the waiter's turn"); !o.OK || o.Text != key {
					t.Errorf("%+v", o)
				}
			})
		}
	}
}

// TestAllFrameworksShareOneLedger transfers there and back in all frameworks at
// once. Nothing but the locks protects the balances, as the race detector sees.
func TestAllFrameworksShareOneLedger(t *testing.T) {
	w := newWorld(t, frameworks.Framework{}, redistest.Shared(t).Client(t))
	locker := w.locker()
	balance := &ledger{"a": 100, "b": 100}
	var calls []<-chan adaptertest.Outcome
	for _, a := range frameworks.All {
		w.Framework = a
		_, client := w.bank(locker, balance)
		for i := range 9 {
			calls = append(calls, async(t.Context(), client, transfer(i)))
		}
	}
	for _, c := range calls {
		if o := adaptertest.Receive(t, c, "the end of a transfer"); !o.OK {
			t.Errorf("%+v", o)
		}
	}
	// There as often as back.
	if b := *balance; b["a"] != 100 || b["b"] != 100 {
		t.Errorf("%v", b)
	}
}

// A parameter is one segment of a path: the rest of one has several spellings.
func TestTheRestOfAPathIsNoParameter(t *testing.T) {
	logged := adaptertest.LogTo(t)
	guard := core.Serialize(adaptertest.Locker(t), "file/{path}")
	never := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") })
	mux, g, e := http.NewServeMux(), gin.New(), echo.New()
	mux.Handle("/rest/{path...}", httplock.Serialize(guard)(never))
	g.POST("/rest/*path", ginlock.Serialize(guard), gin.WrapH(never))
	e.POST("/rest/*", echo.WrapHandler(never), echolock.Serialize(guard))
	for _, h := range []http.Handler{mux, g, e} {
		adaptertest.Post(t, adaptertest.Serve(t, h), "/rest/a/b").WantProblem(t, 500, "misconfigured", "")
	}
	if !strings.Contains(logged.String(), "{path}") {
		t.Errorf("logged:\n%s", logged)
	}
}

// Frameworks log the errors of requests, and so those of this module.
func TestWhatFrameworksLogShowsNoKeyAndNoAddress(t *testing.T) {
	up := adaptertest.Locker(t)
	nowhere := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { _ = nowhere.Close() })
	down := adaptertest.LockerOn(t, nowhere)
	lease, err := up.Lock(t.Context(), "account/42")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lease.Release(t.Context()) }()
	never := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") })

	for name, build := range map[string]func(logged io.Writer, held, down *core.Guard) http.Handler{
		"gin's logger": func(logged io.Writer, held, down *core.Guard) http.Handler {
			r := gin.New()
			r.Use(gin.LoggerWithWriter(logged))
			r.POST("/held/:id", ginlock.Serialize(held), gin.WrapH(never))
			r.POST("/down/:id", ginlock.Serialize(down), gin.WrapH(never))
			return r
		},
		"an error handler of echo's": func(logged io.Writer, held, down *core.Guard) http.Handler {
			e := echo.New()
			e.HTTPErrorHandler = func(err error, c echo.Context) {
				_, _ = fmt.Fprintf(logged, "%v %+v", err, err)
				e.DefaultHTTPErrorHandler(err, c)
			}
			e.POST("/held/:id", echo.WrapHandler(never), echolock.Serialize(held))
			e.POST("/down/:id", echo.WrapHandler(never), echolock.Serialize(down))
			return e
		},
	} {
		for path, status := range map[string]int{"/held/42": 423, "/down/42": 503} {
			logged := new(adaptertest.Buffer)
			srv := adaptertest.Serve(t, build(logged, core.Serialize(up, "account/{id}", core.Wait(0)),
				core.Serialize(down, "account/{id}", core.Wait(100*time.Millisecond))))
			if a := adaptertest.Post(t, srv, path); a.Status != status {
				t.Errorf("%s, %s: %d", name, path, a.Status)
			}
			text := logged.String()
			if !strings.Contains(text, core.Hashed("account/42").Hash()) {
				t.Errorf("%s, %s: no hash is logged: %s", name, path, text)
			}
			if strings.Contains(text, "account/42") || strings.Contains(text, "127.0.0.1:1") {
				t.Errorf("%s, %s: a key or an address is logged: %s", name, path, text)
			}
		}
	}
}

// A mistake of the program's shows when it starts, not with the first request.
func TestRegistrationWithoutARuleOrAnEnginePanics(t *testing.T) {
	for name, register := range map[string]func(){
		"httplock.Serialize":               func() { httplock.Serialize(nil) },
		"httplock.Idempotent":              func() { httplock.Idempotent(nil) },
		"ginlock.Serialize":                func() { ginlock.Serialize(nil) },
		"ginlock.Idempotent":               func() { ginlock.Idempotent(nil) },
		"echolock.Serialize":               func() { echolock.Serialize(nil) },
		"echolock.Idempotent":              func() { echolock.Idempotent(nil) },
		"grpclock.UnaryServerInterceptor":  func() { grpclock.UnaryServerInterceptor(grpclock.Rules{"/a/b": nil}) },
		"grpclock.StreamServerInterceptor": func() { grpclock.StreamServerInterceptor(grpclock.Rules{"/a/b": nil}) },
		"grpclock.Idempotent":              func() { grpclock.Idempotent(grpclock.Methods{"/a/b": nil}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			register()
		}()
	}
}
