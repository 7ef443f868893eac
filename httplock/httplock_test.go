package httplock_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/httplock"
	_ "github.com/interlock-go/interlock/internal/bubble"
	"github.com/interlock-go/interlock/internal/testkit"
)

// route is a ServeMux with one locked handler.
func route(pattern string, guard *core.Guard, h http.HandlerFunc, opts ...httplock.Option) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle(pattern, httplock.Guard(guard, opts...)(h))
	return mux
}

// say writes a body. Whether it arrived is for the client to see.
func say(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }

// keyOf answers with the key of its lease.
func keyOf(w http.ResponseWriter, r *http.Request) {
	say(w, "%s", core.LeaseFromContext(r.Context()).Key())
}

// One path is one key, also if another router takes it apart.
func TestPathValuesAreDecodedOnceByServeMuxAndChi(t *testing.T) {
	locker := testkit.Locker(t)
	guard := core.Serialize(locker, "account/{id}")
	handler := http.HandlerFunc(keyOf)
	router := chi.NewRouter()
	router.With(httplock.Guard(guard, httplock.RawParams())).Get("/with/{id}/x", keyOf)
	router.With(httplock.Guard(guard, httplock.RawParams(), httplock.ParamFunc(chi.URLParam))).Get("/func/{id}/x", keyOf)
	router.With(httplock.Guard(guard, httplock.RawParams())).Get("/regexp/{id:[^/]+}/x", keyOf)
	router.Route("/sub/{id}", func(r chi.Router) {
		r.Use(httplock.Guard(guard, httplock.RawParams()))
		r.Get("/x", keyOf)
	})
	mux := route("/mux/{id}/x", guard, keyOf)
	mux.Handle("/method/{id}/x", httplock.Guard(guard)(handler))
	mux.Handle("/", router)
	srv := testkit.Serve(t, mux)
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
			if a := testkit.Do(t, srv, "GET", prefix+path+"/x"); a.Status != 200 || a.Body != want {
				t.Errorf("%s%s/x: %d %q; want %q", prefix, path, a.Status, a.Body, want)
			}
		}
	}
}

// A router below a pattern with a remaining path has its own parameters.
func TestParametersOfARouterBelowARemainingPathAreFound(t *testing.T) {
	locker := testkit.Locker(t)
	guard := core.Serialize(locker, "account/{id}")
	below := func(r *http.Request, name string) string {
		if id, ok := strings.CutPrefix(r.URL.Path, "/api/accounts/"); ok && name == "id" {
			return id
		}
		return ""
	}
	mux := http.NewServeMux()
	mux.Handle("/api/{rest...}", httplock.Guard(guard, httplock.ParamFunc(below))(http.HandlerFunc(keyOf)))
	srv := testkit.Serve(t, mux)
	testkit.Do(t, srv, "POST", "/api/accounts/7").Want(t, 200, "account/7")
	testkit.Do(t, srv, "POST", "/api/users/7").WantProblem(t, 500, "misconfigured", "")
}

func TestWrappingARouterFromOutsideIs500AndSaysWhatToDo(t *testing.T) {
	locker := testkit.Locker(t)
	lock := func() func(http.Handler) http.Handler { // a new rule: a rule's log is thinned out
		return httplock.Guard(core.Serialize(locker, "account/{id}"))
	}
	never := func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") }
	mux := http.NewServeMux()
	mux.HandleFunc("/{id}", never)
	router := chi.NewRouter()
	router.Use(lock())
	router.Get("/{id}", never)
	for name, h := range map[string]http.Handler{"ServeMux": lock()(mux), "chi Use": router} {
		logged := testkit.LogTo(t)
		testkit.Do(t, testkit.Serve(t, h), "GET", "/1").WantProblem(t, 500, "misconfigured", "")
		if !strings.Contains(logged.String(), "wrap handlers, not the router") {
			t.Errorf("%s logged:\n%s", name, logged)
		}
	}
}

// An access log names routes. A middleware between it and the router has a copy of the request, and so has
// the router.
func TestMiddlewareInFrontSeesTheRouteOfARouterBehind(t *testing.T) {
	locker := testkit.Locker(t)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /accounts/{id}/debit", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })
	mux.HandleFunc("POST /accounts/{id}/broken", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	for name, behind := range map[string]http.Handler{
		"nothing":     mux,
		"Guard":       httplock.Guard(core.Serialize(locker, "all"))(mux),
		"Idempotent":  httplock.Idempotent(testkit.Engine(t))(mux),
		"MeasureBody": httplock.MeasureBody(mux),
		"all":         httplock.MeasureBody(httplock.Idempotent(testkit.Engine(t))(httplock.Guard(core.Serialize(locker, "all"))(mux))),
	} {
		for _, end := range []string{"debit", "broken"} {
			pattern, id := "", ""
			h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer func() {
					_ = recover() // as an access log writes its line in any case
					pattern, id = r.Pattern, r.PathValue("id")
				}()
				behind.ServeHTTP(w, r)
			})
			r := httptest.NewRequestWithContext(t.Context(), "POST", "/accounts/7/"+end, nil)
			r.Header.Set("Idempotency-Key", name+end)
			h.ServeHTTP(httptest.NewRecorder(), r)
			if want := "POST /accounts/{id}/" + end; pattern != want || id != "7" {
				t.Errorf("behind %s the route is %q with the id %q; expected is %q with 7", name, pattern, id, want)
			}
		}
	}
}

func TestRuleWithoutParametersWorksWithoutARouter(t *testing.T) {
	locker := testkit.Locker(t)
	guard := core.Serialize(locker, "host/{header.Host}/tenant/{header.x-tenant}/{query.q}")
	srv := testkit.Serve(t, httplock.Guard(guard)(http.HandlerFunc(keyOf)))
	a := testkit.Do(t, srv, "GET", "/?q=a%26b", func(r *http.Request) { r.Host = "example.org"; r.Header.Set("X-Tenant", "acme") })
	if a.Body != "host/example.org/tenant/acme/a%26b" {
		t.Errorf("%d %s", a.Status, a.Body)
	}
}

func TestLockInsideTimeoutHandlerIsHeldUntilTheHandlerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locker := testkit.Locker(t)
		leave := make(chan struct{})
		locked := httplock.Guard(core.Serialize(locker, "account/1"))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-leave }))
		w := httptest.NewRecorder()
		http.TimeoutHandler(locked, time.Second, "too slow").ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/1", http.NoBody))
		if w.Code != 503 || w.Body.String() != "too slow" {
			t.Fatalf("%d %q", w.Code, w.Body)
		}
		if held := locker.Held(); len(held) != 1 || !held[0].Held {
			t.Errorf("the handler still works, held is %+v", held)
		}
		close(leave)
		synctest.Wait()
		if held := locker.Held(); len(held) != 0 {
			t.Errorf("the handler has ended, held is %+v", held)
		}
	})
}

func TestWriterKeepsWhatTheOneBelowCanDo(t *testing.T) {
	guard := core.Serialize(testkit.Locker(t), "stream")
	srv := testkit.Serve(t, route("/copy", guard, func(w http.ResponseWriter, _ *http.Request) {
		if _, ok := w.(io.ReaderFrom); !ok {
			t.Error("no io.ReaderFrom")
		}
		_, _ = io.Copy(w, readerOnly{strings.NewReader("copied")})
	}))
	testkit.Do(t, srv, "GET", "/copy").Want(t, 200, "copied")
}

// readerOnly hides WriterTo, which io.Copy prefers to io.ReaderFrom.
type readerOnly struct{ io.Reader }
