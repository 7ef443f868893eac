package httplock_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/internal/adaptertest"
	"github.com/interlock-go/interlock/internal/httpx"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// route is a ServeMux with one locked handler.
func route(pattern string, guard *core.Guard, h http.HandlerFunc, opts ...httplock.Option) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle(pattern, httplock.Serialize(guard, opts...)(h))
	return mux
}

// gate is a handler that says when it is inside and stays until it is let go.
type gate struct{ adaptertest.Gate }

func newGate() gate { return gate{adaptertest.NewGate()} }

func (g gate) ServeHTTP(http.ResponseWriter, *http.Request) { g.Pass() }

// say writes a body. Whether it arrived is for the client to see.
func say(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }

// keyOf answers with the key of its lease.
func keyOf(w http.ResponseWriter, r *http.Request) {
	say(w, "%s", core.LeaseFromContext(r.Context()).Key())
}

func TestRequestsForOneResourceRunOneAfterTheOtherAndOthersBeside(t *testing.T) {
	locker := adaptertest.Locker(t)
	exclusion := adaptertest.NewExclusion()
	guard := core.Serialize(locker, "account/{id}", core.Wait(time.Minute))
	srv := adaptertest.Serve(t, route("POST /accounts/{id}/debit", guard, func(_ http.ResponseWriter, r *http.Request) {
		exclusion.Enter(t, int(r.PathValue("id")[0]-'0'))
	}))
	exclusion.Run(t, srv, [2]string{"/accounts/0/debit", "/accounts/1/debit"})
}

func TestRefusalsFollowTheTable(t *testing.T) {
	locker := adaptertest.Locker(t)
	hold := newGate()
	mux := http.NewServeMux()
	lock := func(pattern, template string, h http.Handler, opts ...core.Option) {
		mux.Handle(pattern, httplock.Serialize(core.Serialize(locker, template, opts...))(h))
	}
	never := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") })
	lock("/hold/{id}", "account/{id}", hold)
	lock("/nowait/{id}", "account/{id}", never, core.Wait(0))
	lock("/short/{id}", "account/{id}", never, core.Wait(20*time.Millisecond))
	lock("/one/{id}", "account/{id}", never, core.MaxWaiters(1), core.Wait(time.Minute))
	lock("/header", "tenant/{header.X-Tenant}", never)
	lock("/query", "query/{query.q}", never)
	lock("/long/{id}", "account/{id}", never)
	lock("/typo/{id}", "account/{idd}", never)
	lock("/rest/{path...}", "file/{path}", never)
	lock("/body", "", never, core.KeyFunc(func(_ context.Context, req core.Request) ([]string, error) {
		_, err := req.Body(4)
		return []string{"k"}, err
	}))
	lock("/deadline/{id}", "account/{id}", never)
	deadline := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 20*time.Millisecond)
		defer cancel()
		mux.ServeHTTP(w, r.WithContext(ctx))
	})
	outer := http.NewServeMux()
	outer.Handle("/", mux)
	outer.Handle("/deadline/", deadline)
	srv := adaptertest.Serve(t, outer)

	var wg sync.WaitGroup
	wg.Go(func() { adaptertest.Do(t, srv, "POST", "/hold/1") })
	<-hold.Inside
	logged := adaptertest.LogTo(t)
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Add(name, value) }
	}

	adaptertest.Do(t, srv, "POST", "/nowait/1").WantProblem(t, 423, "held", "1")
	adaptertest.Do(t, srv, "POST", "/short/1").WantProblem(t, 423, "held", "1")
	adaptertest.Do(t, srv, "POST", "/deadline/1").WantProblem(t, 423, "deadline", "")
	leave := adaptertest.Leave(t, srv, "/one/1")
	adaptertest.Queued(t, locker, 1)
	adaptertest.Do(t, srv, "POST", "/one/1").WantProblem(t, 423, "queue-full", "1")
	leave()
	adaptertest.Queued(t, locker, 0)
	close(hold.Leave)
	wg.Wait()

	adaptertest.Do(t, srv, "POST", "/header").WantProblem(t, 400, "bad-key", "")
	adaptertest.Do(t, srv, "POST", "/header", header("X-Tenant", "")).WantProblem(t, 400, "bad-key", "")
	adaptertest.Do(t, srv, "POST", "/header", header("X-Tenant", "a"), header("X-Tenant", "b")).WantProblem(t, 400, "bad-key", "")
	adaptertest.Do(t, srv, "POST", "/query").WantProblem(t, 400, "bad-key", "")
	adaptertest.Do(t, srv, "POST", "/query?q=").WantProblem(t, 400, "bad-key", "")
	adaptertest.Do(t, srv, "POST", "/query?q=%zz").WantProblem(t, 400, "bad-key", "")
	adaptertest.Do(t, srv, "POST", "/query?q=a&q=b").WantProblem(t, 400, "bad-key", "")
	adaptertest.Do(t, srv, "POST", "/long/"+strings.Repeat("x", 505)).WantProblem(t, 400, "bad-key", "")
	adaptertest.Do(t, srv, "POST", "/body", func(r *http.Request) {
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader("12345")), 5
	}).WantProblem(t, 413, "body-too-large", "")
	if logged.String() != "" {
		t.Errorf("the clients' mistakes were logged:\n%s", logged)
	}
	adaptertest.Do(t, srv, "POST", "/typo/1").WantProblem(t, 500, "misconfigured", "")
	adaptertest.Do(t, srv, "POST", "/rest/a/b").WantProblem(t, 500, "misconfigured", "")
	if !strings.Contains(logged.String(), "{idd}") || !strings.Contains(logged.String(), "/typo/{id}") {
		t.Errorf("logged:\n%s", logged)
	}

	if err := locker.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	adaptertest.Do(t, srv, "POST", "/nowait/1").WantProblem(t, 503, "closing", "1")
}

func TestUnreachableStoreIs503AndTheHandlerDoesNotRun(t *testing.T) {
	server := redistest.Start(t)
	locker := adaptertest.LockerOn(t, server.Client(t))
	guard := core.Serialize(locker, "account/{id}", core.Wait(50*time.Millisecond))
	srv := adaptertest.Serve(t, route("/{id}", guard, func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") }))
	server.Kill()
	adaptertest.Do(t, srv, "POST", "/1").WantProblem(t, 503, "unavailable", "1")
}

func TestBodiesAreFixedTextWithoutTheKeyOrTheError(t *testing.T) {
	locker := adaptertest.Locker(t)
	guard := core.Serialize(locker, "account/{id}", core.Wait(0))
	hold := newGate()
	srv := adaptertest.Serve(t, route("/{id}", guard, hold.ServeHTTP))
	var wg sync.WaitGroup
	wg.Go(func() { adaptertest.Do(t, srv, "POST", "/secret") })
	<-hold.Inside
	got := adaptertest.Do(t, srv, "POST", "/secret")
	close(hold.Leave)
	wg.Wait()
	want := `{"type":"urn:interlock:problem:held","title":"Locked","status":423,` +
		`"detail":"The resource is locked by another request. Nothing was done."}`
	if got.Body != want {
		t.Errorf("%s\nwant\n%s", got.Body, want)
	}
}

func TestEveryReasonHasAProblem(t *testing.T) {
	for _, reason := range []core.Reason{
		core.ReasonBadKey, core.ReasonBodyTooLarge, core.ReasonBodyIncomplete, core.ReasonBodyTimeout,
		core.ReasonHeld, core.ReasonQueueFull, core.ReasonPrincipalLimit, core.ReasonDeadline,
		core.ReasonUnavailable, core.ReasonNotReplicated, core.ReasonClosing, core.ReasonLost, core.ReasonMaxHold,
		core.ReasonMisconfigured, core.ReasonKeyOccupied, core.ReasonInternal,
	} {
		w := httptest.NewRecorder()
		httplock.Problem(w, nil, &core.Refusal{Reason: reason})
		if w.Code < 400 || !strings.Contains(w.Body.String(), string(reason)) {
			t.Errorf("%s: %d %s", reason, w.Code, w.Body)
		}
	}
}

func TestPanicReleasesTheLockAndPassesThrough(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	locker := adaptertest.LockerOn(t, rdb)
	guard := core.Serialize(locker, "account/{id}")
	for _, thrown := range []any{http.ErrAbortHandler, "a value", errors.New("an error")} {
		mux := route("/{id}", guard, func(http.ResponseWriter, *http.Request) { panic(thrown) })
		caught := make(chan any, 1)
		srv := adaptertest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				v := recover()
				if n := rdb.Exists(r.Context(), "interlock:{account/1}").Val(); n != 0 {
					t.Error("the lock was held when the panic came out")
				}
				caught <- v
				panic(v)
			}()
			mux.ServeHTTP(w, r)
		}))
		resp, err := srv.Client().Get(srv.URL + "/1")
		if err == nil {
			resp.Body.Close()
			t.Errorf("%v: the client was answered %d", thrown, resp.StatusCode)
		}
		if v := <-caught; v != thrown {
			t.Errorf("caught %v; want %v", v, thrown)
		}
	}
}

func TestClientThatLeavesWhileQueuedFreesItsPlaceAndNothingIsWritten(t *testing.T) {
	for name, config := range map[string]func(*httptest.Server){
		"HTTP/1": func(s *httptest.Server) { s.Start() },
		"HTTP/2": func(s *httptest.Server) { s.EnableHTTP2 = true; s.StartTLS() },
	} {
		t.Run(name, func(t *testing.T) {
			locker := adaptertest.Locker(t)
			guard := core.Serialize(locker, "account/{id}", core.Wait(time.Minute))
			hold := newGate()
			mux := route("/{id}", guard, hold.ServeHTTP)
			answered := make(chan bool, 2)
			srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				tracked := &httpx.Writer{ResponseWriter: w}
				mux.ServeHTTP(tracked, r)
				answered <- tracked.Answered
			}))
			config(srv)
			defer srv.Close()

			var wg sync.WaitGroup
			wg.Go(func() { adaptertest.Do(t, srv, "GET", "/1") })
			<-hold.Inside
			leave := adaptertest.Leave(t, srv, "/1")
			adaptertest.Queued(t, locker, 1)
			leave()
			if <-answered {
				t.Error("an answer was written to a client that had gone")
			}
			adaptertest.Queued(t, locker, 0)
			close(hold.Leave)
			wg.Wait()
		})
	}
}

func TestLeaseLostBeforeTheAnswerIs500AndAfterItOnlyReported(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	lost := make(chan core.Loss, 10)
	locker := adaptertest.LockerOn(t, rdb, core.Watchdog(900*time.Millisecond), core.OnLost(func(l core.Loss) { lost <- l }))
	guard := core.Serialize(locker, "account/{id}")
	mux := http.NewServeMux()
	lock := func(pattern string, h http.HandlerFunc) { mux.Handle(pattern, httplock.Serialize(guard)(h)) }
	lock("/before/{id}", func(w http.ResponseWriter, r *http.Request) {
		adaptertest.Describe(w.Header())
		w.WriteHeader(http.StatusEarlyHints) // not an answer
		adaptertest.Lose(r.Context(), t, rdb)
	})
	lock("/after/{id}", func(w http.ResponseWriter, r *http.Request) {
		say(w, "done")
		adaptertest.Lose(r.Context(), t, rdb)
	})
	lock("/own/{id}", func(w http.ResponseWriter, r *http.Request) {
		adaptertest.Lose(r.Context(), t, rdb)
		http.Error(w, "rolled back", http.StatusConflict)
	})
	srv := adaptertest.Serve(t, adaptertest.InFront(mux))

	a := adaptertest.Do(t, srv, "POST", "/before/1")
	a.WantProblem(t, 500, "lost", "")
	a.WantUndescribed(t)
	if a := adaptertest.Do(t, srv, "POST", "/after/1"); a.Status != 200 || a.Body != "done" {
		t.Errorf("after: %d %q", a.Status, a.Body)
	}
	if a := adaptertest.Do(t, srv, "POST", "/own/1"); a.Status != 409 || a.Body != "rolled back\n" {
		t.Errorf("own: %d %q", a.Status, a.Body)
	}
	for range 3 {
		if l := <-lost; l.Key != "account/1" || l.Rule != "account/{id}" || l.Reason != core.LossDeleted {
			t.Errorf("OnLost: %+v", l)
		}
	}
}

func TestMaximumHoldBeforeTheAnswerIs500(t *testing.T) {
	locker := adaptertest.Locker(t)
	guard := core.Serialize(locker, "account/{id}", core.MaxHold(20*time.Millisecond))
	srv := adaptertest.Serve(t, route("/{id}", guard, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	adaptertest.Do(t, srv, "POST", "/1").WantProblem(t, 500, "max-hold", "")
}

// One path is one key, whichever router took it apart.
func TestPathValuesAreDecodedOnceByServeMuxAndChi(t *testing.T) {
	locker := adaptertest.Locker(t)
	guard := core.Serialize(locker, "account/{id}")
	handler := http.HandlerFunc(keyOf)
	router := chi.NewRouter()
	router.With(httplock.Serialize(guard, httplock.RawParams())).Get("/with/{id}/x", keyOf)
	router.With(httplock.Serialize(guard, httplock.RawParams(), httplock.ParamFunc(chi.URLParam))).Get("/func/{id}/x", keyOf)
	router.With(httplock.Serialize(guard, httplock.RawParams())).Get("/regexp/{id:[^/]+}/x", keyOf)
	router.Route("/sub/{id}", func(r chi.Router) {
		r.Use(httplock.Serialize(guard, httplock.RawParams()))
		r.Get("/x", keyOf)
	})
	mux := route("/mux/{id}/x", guard, keyOf)
	mux.Handle("/method/{id}/x", httplock.Serialize(guard)(handler))
	mux.Handle("/", router)
	srv := adaptertest.Serve(t, mux)
	for path, want := range map[string]string{
		"A":        "account/A",
		"%41":      "account/A",
		"a%2Fb":    "account/a%2Fb",
		"a%2fb":    "account/a%2Fb",
		"%2541":    "account/%2541",
		"%7Bid%7D": "account/%7Bid%7D",
		"%0D%0A":   "account/%0D%0A",
		"%00":      "account/%00",
		"%FF":      "account/%FF",
		"%C3%B6":   "account/%C3%B6",
		"ö":        "account/%C3%B6",
		"a+b":      "account/a%2Bb",
		"a%20b":    "account/a%20b",
		"a;b=c":    "account/a%3Bb%3Dc",
		"2f3a:1":   "account/2f3a%3A1",
		"-._~":     "account/-._~",
		"%2e%2e":   "account/..",
	} {
		for _, prefix := range []string{"/mux/", "/method/", "/with/", "/func/", "/regexp/", "/sub/"} {
			if a := adaptertest.Do(t, srv, "GET", prefix+path+"/x"); a.Status != 200 || a.Body != want {
				t.Errorf("%s%s/x: %d %q; want %q", prefix, path, a.Status, a.Body, want)
			}
		}
	}
}

// A router below a pattern with a remaining path has parameters of its own.
func TestParametersOfARouterBelowARemainingPathAreFound(t *testing.T) {
	locker := adaptertest.Locker(t)
	guard := core.Serialize(locker, "account/{id}")
	below := func(r *http.Request, name string) string {
		if id, ok := strings.CutPrefix(r.URL.Path, "/api/accounts/"); ok && name == "id" {
			return id
		}
		return ""
	}
	mux := http.NewServeMux()
	mux.Handle("/api/{rest...}", httplock.Serialize(guard, httplock.ParamFunc(below))(http.HandlerFunc(keyOf)))
	srv := adaptertest.Serve(t, mux)
	adaptertest.Do(t, srv, "POST", "/api/accounts/7").Want(t, 200, "account/7")
	adaptertest.Do(t, srv, "POST", "/api/users/7").WantProblem(t, 500, "misconfigured", "")
}

func TestWrappingARouterFromOutsideIs500AndSaysWhatToDo(t *testing.T) {
	locker := adaptertest.Locker(t)
	lock := func() func(http.Handler) http.Handler { // of its own: a rule's log is thinned out
		return httplock.Serialize(core.Serialize(locker, "account/{id}"))
	}
	never := func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") }
	mux := http.NewServeMux()
	mux.HandleFunc("/{id}", never)
	router := chi.NewRouter()
	router.Use(lock())
	router.Get("/{id}", never)
	for name, h := range map[string]http.Handler{"ServeMux": lock()(mux), "chi Use": router} {
		logged := adaptertest.LogTo(t)
		adaptertest.Do(t, adaptertest.Serve(t, h), "GET", "/1").WantProblem(t, 500, "misconfigured", "")
		if !strings.Contains(logged.String(), "wrap handlers, not the router") {
			t.Errorf("%s logged:\n%s", name, logged)
		}
	}
}

func TestPatternNamesItsParametersAndNoRemainingPath(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"POST /accounts/{id}/debit", "id", true},
		{"/{idx}/{id}", "id", true},
		{"/{id:[0-9]{3}}", "id", true}, // chi
		{"/{idx}", "id", false},
		{"/{path...}", "path", false},
		{"/{path...}", "pat", false},
		{"/{id", "id", false},
		{"", "id", false},
	} {
		if got := httpx.Names(c.pattern, c.name); got != c.want {
			t.Errorf("Names(%q, %q) = %v", c.pattern, c.name, got)
		}
	}
}

func TestRuleWithoutParametersWorksWithoutARouter(t *testing.T) {
	locker := adaptertest.Locker(t)
	guard := core.Serialize(locker, "host/{header.Host}/tenant/{header.x-tenant}/{query.q}")
	srv := adaptertest.Serve(t, httplock.Serialize(guard)(http.HandlerFunc(keyOf)))
	a := adaptertest.Do(t, srv, "GET", "/?q=a%26b", func(r *http.Request) { r.Host = "example.org"; r.Header.Set("X-Tenant", "acme") })
	if a.Body != "host/example.org/tenant/acme/a%26b" {
		t.Errorf("%d %s", a.Status, a.Body)
	}
}

func TestSameRuleAroundItselfReenters(t *testing.T) {
	locker := adaptertest.Locker(t)
	guard := core.Serialize(locker, "account/{id}", core.Wait(0))
	twice := httplock.Serialize(guard)(httplock.Serialize(guard)(http.HandlerFunc(keyOf)))
	mux := http.NewServeMux()
	mux.Handle("/{id}", twice)
	srv := adaptertest.Serve(t, mux)
	for range 2 {
		if a := adaptertest.Do(t, srv, "GET", "/1"); a.Status != 200 || a.Body != "account/1" {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
	}
}

func TestTransfersInBothDirectionsKeepTheSumAndDoNotDeadlock(t *testing.T) {
	locker := adaptertest.Locker(t)
	guard := core.Serialize(locker, "account/{from}", core.And("account/{to}"), core.Wait(time.Minute))
	balance := map[string]int{"a": 1000, "b": 1000}
	srv := adaptertest.Serve(t, route("/{from}/{to}", guard, func(_ http.ResponseWriter, r *http.Request) {
		// The race detector watches: nothing but the locks guards the map.
		from, to := r.PathValue("from"), r.PathValue("to")
		balance[from]--
		runtime.Gosched()
		balance[to]++
	}))
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			path := [...]string{"/a/b", "/b/a", "/a/a"}[i%3]
			if a := adaptertest.Do(t, srv, "POST", path); a.Status != 200 {
				t.Errorf("%s: %d %s", path, a.Status, a.Body)
			}
		})
	}
	wg.Wait()
	if balance["a"] != 1000 || balance["b"] != 1000 {
		t.Errorf("balances %v", balance)
	}
}

func TestRenderReplacesTheAnswerAndCanFallBack(t *testing.T) {
	locker := adaptertest.Locker(t)
	guard := core.Serialize(locker, "t/{header.X}")
	render := httplock.Render(func(w http.ResponseWriter, r *http.Request, refusal *core.Refusal) {
		if refusal.Reason != core.ReasonBadKey || !errors.Is(refusal.Err, core.ErrKey) || refusal.Rule != "t/{header.X}" {
			t.Errorf("refusal %+v", refusal)
		}
		if r.URL.Query().Has("fallback") {
			httplock.Problem(w, r, refusal)
			return
		}
		http.Error(w, "say who you are", http.StatusForbidden)
	})
	never := func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") }
	srv := adaptertest.Serve(t, route("/", guard, never, render))
	if a := adaptertest.Do(t, srv, "GET", "/"); a.Status != 403 || a.Body != "say who you are\n" {
		t.Errorf("%d %q", a.Status, a.Body)
	}
	adaptertest.Do(t, srv, "GET", "/?fallback").WantProblem(t, 400, "bad-key", "")
	none := adaptertest.Serve(t, route("/", guard, never, httplock.Render(nil), httplock.ParamFunc(nil)))
	adaptertest.Do(t, none, "GET", "/").WantProblem(t, 400, "bad-key", "")
}

func TestLockInsideTimeoutHandlerIsHeldUntilTheHandlerEnds(t *testing.T) {
	locker := adaptertest.Locker(t)
	guard := core.Serialize(locker, "account/{id}", core.Wait(0))
	hold := newGate()
	locked := httplock.Serialize(guard)(hold)
	mux := http.NewServeMux()
	mux.Handle("/{id}", http.TimeoutHandler(locked, 20*time.Millisecond, "too slow"))
	srv := adaptertest.Serve(t, mux)
	if a := adaptertest.Do(t, srv, "GET", "/1"); a.Status != 503 || a.Body != "too slow" {
		t.Fatalf("%d %q", a.Status, a.Body)
	}
	<-hold.Inside
	if held := locker.Held(); len(held) != 1 || !held[0].Held {
		t.Errorf("the handler still works, held is %+v", held)
	}
	close(hold.Leave)
	adaptertest.Until(t, "released", func() bool { return len(locker.Held()) == 0 })
}

func TestWriterKeepsWhatTheOneBelowCanDo(t *testing.T) {
	locker := adaptertest.Locker(t)
	guard := core.Serialize(locker, "stream")
	mux := http.NewServeMux()
	lock := func(pattern string, h http.HandlerFunc) { mux.Handle(pattern, httplock.Serialize(guard)(h)) }
	next := make(chan struct{})
	lock("/controller", func(w http.ResponseWriter, _ *http.Request) {
		rc := http.NewResponseController(w)
		for range 2 {
			say(w, "data: x\n\n")
			if err := errors.Join(rc.Flush(), rc.SetWriteDeadline(time.Now().Add(time.Minute)), rc.EnableFullDuplex()); err != nil {
				t.Error(err)
			}
			<-next
		}
	})
	lock("/flusher", func(w http.ResponseWriter, _ *http.Request) {
		for range 2 {
			say(w, "data: x\n\n")
			w.(http.Flusher).Flush()
			<-next
		}
	})
	lock("/hijack", func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		say(rw, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nraw")
		if err := rw.Flush(); err != nil {
			t.Error(err)
		}
	})
	lock("/copy", func(w http.ResponseWriter, _ *http.Request) {
		if _, ok := w.(io.ReaderFrom); !ok {
			t.Error("no io.ReaderFrom")
		}
		_, _ = io.Copy(w, readerOnly{strings.NewReader("copied")})
	})
	srv := adaptertest.Serve(t, mux)
	for _, path := range []string{"/controller", "/flusher"} {
		resp, err := srv.Client().Get(srv.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // each event arrives while the handler waits
			if line, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil || line != "data: x\n" {
				t.Errorf("%s: %q, %v", path, line, err)
			}
			next <- struct{}{}
		}
		resp.Body.Close()
	}
	if a := adaptertest.Do(t, srv, "GET", "/hijack"); a.Body != "raw" {
		t.Errorf("hijack: %d %q", a.Status, a.Body)
	}
	if a := adaptertest.Do(t, srv, "GET", "/copy"); a.Body != "copied" {
		t.Errorf("copy: %d %q", a.Status, a.Body)
	}
}

func TestWriterKnowsWhenTheAnswerHasBegun(t *testing.T) {
	for name, c := range map[string]struct {
		f    func(w *httpx.Writer)
		want bool
	}{
		"nothing":     {func(*httpx.Writer) {}, false},
		"headers":     {func(w *httpx.Writer) { w.Header().Set("X", "y") }, false},
		"early hints": {func(w *httpx.Writer) { w.WriteHeader(http.StatusEarlyHints) }, false},
		"status":      {func(w *httpx.Writer) { w.WriteHeader(http.StatusNoContent) }, true},
		"upgrade":     {func(w *httpx.Writer) { w.WriteHeader(http.StatusSwitchingProtocols) }, true},
		"body":        {func(w *httpx.Writer) { say(w, "x") }, true},
		"string":      {func(w *httpx.Writer) { _, _ = io.WriteString(w, "x") }, true},
		"copy":        {func(w *httpx.Writer) { _, _ = io.Copy(w, readerOnly{strings.NewReader("x")}) }, true},
		"copy of nothing": {func(w *httpx.Writer) {
			if _, err := io.Copy(w, errReader{io.ErrUnexpectedEOF}); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Error(err)
			}
		}, false},
		"flush":      {func(w *httpx.Writer) { w.ForHandler().(http.Flusher).Flush() }, true},
		"controller": {func(w *httpx.Writer) { _ = http.NewResponseController(w).Flush() }, true},
		"flush that cannot": {func(w *httpx.Writer) {
			w.ResponseWriter = adaptertest.Deaf{Headers: http.Header{}}
			if err := http.NewResponseController(w).Flush(); !errors.Is(err, http.ErrNotSupported) {
				t.Error(err)
			}
		}, false},
		"hijack that fails": {func(w *httpx.Writer) {
			if _, _, err := http.NewResponseController(w.ForHandler()).Hijack(); !errors.Is(err, http.ErrNotSupported) {
				t.Error(err)
			}
		}, false},
	} {
		w := &httpx.Writer{ResponseWriter: httptest.NewRecorder()}
		if c.f(w); w.Answered != c.want {
			t.Errorf("%s: answered %v; want %v", name, w.Answered, c.want)
		}
	}
}

func TestOriginalRequestIsLeftAsItWasAndGetsTheMultipartForm(t *testing.T) {
	locker := adaptertest.Locker(t)
	guard := core.Serialize(locker, "upload")
	file := make(chan string, 1)
	mux := route("/", guard, func(_ http.ResponseWriter, r *http.Request) {
		name, err := adaptertest.OnDisk(r)
		if err != nil {
			t.Error(err)
		}
		file <- name
	})
	srv := adaptertest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		mux.ServeHTTP(w, r)
		if r.Context() != ctx || ctx.Err() != nil || core.LeaseFromContext(ctx) != nil {
			t.Errorf("the original's context changed, or ended: %v", ctx.Err())
		}
		if r.MultipartForm == nil {
			t.Error("the original knows nothing of the form")
		}
	}))
	adaptertest.Upload(t, srv, "/")
	srv.Close() // waits until the server is done with the request
	if _, err := os.Stat(<-file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the temporary file was left behind: %v", err)
	}
}

func TestKeyFuncReadsTheBodyAndTheHandlerReadsItAgain(t *testing.T) {
	locker := adaptertest.Locker(t)
	guard := core.Serialize(locker, "", core.KeyFunc(func(_ context.Context, req core.Request) ([]string, error) {
		var order struct{ Account string }
		var last error
		for range 2 { // twice, to see that it is put back each time
			body, err := req.Body(1 << 20)
			if err == nil {
				err = json.Unmarshal(body, &order)
			}
			last = err
		}
		if last != nil {
			return nil, fmt.Errorf("%w: %w", core.ErrKey, last)
		}
		if req.Native().(*http.Request).Method != http.MethodPost {
			t.Error("not the native request")
		}
		key, err := core.Key("account", order.Account)
		return []string{key}, err
	}))
	srv := adaptertest.Serve(t, route("/", guard, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		say(w, "%s %x", core.LeaseFromContext(r.Context()).Key(), sha256.Sum256(body))
	}))
	post := func(body string) adaptertest.Answer {
		return adaptertest.Do(t, srv, "POST", "/", func(r *http.Request) {
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		})
	}
	body := `{"account":"a/1","note":"` + strings.Repeat("x", 1<<16) + `"}`
	if a, want := post(body), fmt.Sprintf("account/a%%2F1 %x", sha256.Sum256([]byte(body))); a.Body != want {
		t.Errorf("%d %s; want %s", a.Status, a.Body, want)
	}
	post(`{"account":""}`).WantProblem(t, 400, "bad-key", "")
	post(`{`).WantProblem(t, 400, "bad-key", "")
	post(``).WantProblem(t, 400, "bad-key", "")
	post(`"`+strings.Repeat("x", 1<<20)).WantProblem(t, 400, "bad-key", "") // the KeyFunc above makes ErrKey of everything
}

func TestBodyIsReadWithinItsLimitAndPutBack(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		body  io.Reader
		limit int64
		want  string
		err   error
		again string
	}{
		"none":            {nil, 10, "", nil, ""},
		"shorter":         {strings.NewReader("abc"), 10, "abc", nil, "abc"},
		"just as long":    {strings.NewReader("abc"), 3, "abc", nil, "abc"},
		"longer":          {strings.NewReader("abcd"), 3, "", core.ErrBodyLimit, "abcd"},
		"no limit":        {strings.NewReader("abc"), 1<<63 - 1, "abc", nil, "abc"},
		"limit of others": {http.MaxBytesReader(nil, io.NopCloser(strings.NewReader("abcd")), 3), 10, "", core.ErrBodyLimit, "abc"},
		"broken":          {io.MultiReader(strings.NewReader("ab"), errReader{broken}), 10, "", core.ErrBody, "ab"},
	} {
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/", c.body)
		got, err := httpx.Request{Request: r}.Body(c.limit)
		if string(got) != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %q, %v; want %q, %v", name, got, err, c.want, c.err)
		}
		if again, _ := io.ReadAll(r.Body); string(again) != c.again {
			t.Errorf("%s: the handler reads %q; want %q", name, again, c.again)
		}
		if err := r.Body.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// readerOnly hides WriterTo, which io.Copy prefers to io.ReaderFrom.
type readerOnly struct{ io.Reader }

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }
