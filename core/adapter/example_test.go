package adapter_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/memstore"
)

// request is the core.Request of a small adapter for net/http.
type request struct{ *http.Request }

func (q request) Route() (string, bool)       { return q.Pattern, true }
func (q request) Header(name string) []string { return q.Request.Header.Values(name) }
func (q request) Query(name string) []string  { return q.URL.Query()[name] }
func (q request) Value(key any) any           { return q.Context().Value(key) }
func (q request) Native() any                 { return q.Request }

func (q request) Param(name string) (string, error) {
	if v := q.PathValue(name); v != "" {
		return v, nil
	}
	return "", adapter.ErrNoParam
}

func (q request) Body(_ int64) ([]byte, error) {
	return nil, errors.New("this adapter leaves the body to the handler")
}

// writer asks before the first part of an answer leaves.
type writer struct {
	http.ResponseWriter
	ctx             context.Context
	begun, answered bool
}

func (w *writer) WriteHeader(status int) {
	if !w.begun {
		w.begun, w.answered = true, adapter.BeginAnswer(w.ctx, status < 400)
	}
	if w.answered {
		w.ResponseWriter.WriteHeader(status)
	}
}

func (w *writer) Write(p []byte) (int, error) {
	if !w.begun {
		w.WriteHeader(http.StatusOK)
	}
	if !w.answered {
		return len(p), nil // dropped
	}
	return w.ResponseWriter.Write(p)
}

// serialize is the middleware of the adapter.
func serialize(guard *core.Guard, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refusal := guard.Do(r.Context(), request{r}, func(ctx context.Context) (answered bool) {
			tracked := &writer{ResponseWriter: w, ctx: ctx}
			next.ServeHTTP(tracked, r.WithContext(ctx))
			return tracked.answered
		})
		if refusal == nil {
			return
		}
		if status, body := refusal.HTTP(w.Header().Set); status != 0 { // else the client has gone
			w.WriteHeader(status)
			_, _ = w.Write(body)
		}
	})
}

// An adapter for net/http, without a part that every adapter can add later: the body.
func Example() {
	locker, err := core.New(memstore.New())
	if err != nil {
		panic(err)
	}
	guard := core.Serialize(locker, "account/{id}", core.Wait(0))
	mux := http.NewServeMux()
	mux.Handle("POST /accounts/{id}", serialize(guard, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, "locked: ", core.LeaseFromContext(r.Context()).Key())
	})))
	post := func() {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest("POST", "/accounts/42", nil))
		body, _ := io.ReadAll(w.Body)
		fmt.Println(w.Code, string(body))
	}
	post()
	lease, err := locker.Lock(context.Background(), "account/42")
	if err != nil {
		panic(err)
	}
	post()
	_ = lease.Release(context.Background())
	// Output:
	// 200 locked: account/42
	// 423 {"type":"urn:interlock:problem:held","title":"Locked","status":423,"detail":"The resource is locked by another request. Nothing was done."}
}
