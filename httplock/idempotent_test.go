package httplock_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/internal/testkit"
)

func TestInformationalResponsesAreNotTheAnswer(t *testing.T) {
	hinted := false
	srv := testkit.Serve(t, httplock.Idempotent(testkit.Engine(t))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "a")
	})))
	hints := func(r *http.Request) {
		r.Header.Set("Idempotency-Key", "k")
		*r = *r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(int, textproto.MIMEHeader) error { hinted = true; return nil },
		}))
	}
	testkit.Do(t, srv, http.MethodPost, "/", hints).WantOwn(t, 201, "a")
	testkit.Do(t, srv, http.MethodPost, "/", hints).WantReplay(t, 201, "a")
	if hinted {
		t.Error("something left before the answer was stored")
	}
}

// net/http panics on such a status. Found out after the answer was stored, every
// replay would panic as well.
func TestAStatusThatIsNoneIsNotStored(t *testing.T) {
	runs := 0
	h := httplock.Idempotent(testkit.Engine(t))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if runs++; runs == 1 {
			w.WriteHeader(0)
		}
		_, _ = io.WriteString(w, "a")
	}))
	srv := testkit.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if thrown := recover(); thrown != nil {
				http.Error(w, fmt.Sprint(thrown), 500)
			}
		}()
		h.ServeHTTP(w, r)
	}))
	testkit.Post(t, srv, "/").WantOwn(t, 500, "invalid WriteHeader code 0\n")
	testkit.Post(t, srv, "/").WantOwn(t, 200, "a")
}

func TestIdempotentRefusalsCanBeRendered(t *testing.T) {
	render := httplock.Render(func(w http.ResponseWriter, _ *http.Request, refusal *core.Refusal) {
		http.Error(w, string(refusal.Reason), http.StatusTeapot)
	})
	srv := testkit.Serve(t, httplock.Idempotent(testkit.Engine(t), render)(http.NotFoundHandler()))
	testkit.Do(t, srv, http.MethodPost, "/").Want(t, http.StatusTeapot, "idempotency-key-missing\n")
}

// A bridge looks like this if its handler fails, or has not run, when the middleware returns.
func TestAnAnswerThatTheHandlerDidNotWriteIsLogged(t *testing.T) {
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		logged  bool
	}{
		"nothing":  {func(http.ResponseWriter, *http.Request) {}, true},
		"a status": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }, false},
		"a body":   {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("a")) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			logged := testkit.LogTo(t)
			srv := testkit.Serve(t, httplock.Idempotent(testkit.Engine(t))(c.handler))
			if a := testkit.Post(t, srv, "/"); a.Status != http.StatusOK {
				t.Errorf("%d %s", a.Status, a.Body)
			}
			if text := logged.String(); strings.Contains(text, "wrote no answer") != c.logged {
				t.Errorf("logged: %q", text)
			}
		})
	}
}

func TestIdempotentUnderTheLockOfARawParameter(t *testing.T) {
	locker := testkit.Locker(t)
	engine := testkit.Engine(t, idempotency.Under(core.Serialize(locker, "account/{id}")))
	r := chi.NewRouter()
	r.With(httplock.Idempotent(engine, httplock.RawParams())).Post("/accounts/{id}", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, core.LeaseFromContext(r.Context()).Key())
	})
	srv := testkit.Serve(t, r)
	testkit.Post(t, srv, "/accounts/a%2Fb").WantOwn(t, 200, "account/a%2Fb")
	testkit.Post(t, srv, "/accounts/a%2Fb").WantReplay(t, 200, "account/a%2Fb")
	testkit.Post(t, srv, "/accounts/a%252Fb").WantProblem(t, 422, "idempotency-key-reused", "")
}
