package endpoint_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/memstore"
)

// call is the Call of a small adapter for net/http. The Message is what a guard asks.
type call struct {
	adapter.Message
	r *http.Request
}

func (c *call) Protocol() string     { return endpoint.HTTP }
func (c *call) Key() (string, error) { return endpoint.ParseKey(c.r.Header[idempotency.KeyHeader]) }

func (c *call) Target() (string, string, string) { return c.r.Method, c.r.URL.Path, c.r.URL.RawQuery }
func (c *call) Origin() (string, string, string) { return c.r.Host, c.r.URL.Path, c.r.URL.RawQuery }

// idempotent is the middleware of the adapter.
func idempotent(engine *idempotency.Engine, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, "the body did not come whole", http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		captured := httptest.NewRecorder() // an adapter also calls Attempt.TooLarge
		verdict := engine.Do(r.Context(), &call{adapter.Message{Payload: body}, r}, endpoint.Handler{
			Run: func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
				next.ServeHTTP(captured, r.WithContext(ctx))
				return endpoint.Response{Status: captured.Code, Header: captured.Header(), Body: captured.Body.Bytes()}, true
			},
			Pass: func(ctx context.Context) (answered bool) {
				next.ServeHTTP(captured, r.WithContext(ctx))
				return true
			},
		})
		switch {
		case verdict.Refusal != nil:
			http.Error(w, verdict.Refusal.Reason.Text(), http.StatusConflict) // by the Reason
		case verdict.Replay != nil:
			w.Header().Set(idempotency.ReplayedHeader, "true")
			w.WriteHeader(verdict.Replay.Status)
			_, _ = w.Write(verdict.Replay.Body)
		default:
			w.WriteHeader(captured.Code)
			_, _ = w.Write(captured.Body.Bytes())
		}
	})
}

// An adapter for net/http, without the header fields, and with one status for all
// refusals.
func Example() {
	engine, err := idempotency.New(memstore.New(), idempotency.Global())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer engine.Close(context.Background())

	balance := 100
	handler := idempotent(engine, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		balance -= 30
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "balance %d", balance)
	}))
	for _, body := range []string{"pay 30", "pay 30", "pay 99"} {
		r := httptest.NewRequest("POST", "/payments", strings.NewReader(body))
		r.Header.Set(idempotency.KeyHeader, `"8e03978e-40d5-43dd-bc93-6894a57f9324"`)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Printf("%d %s (replayed: %q)\n", w.Code, strings.TrimSpace(w.Body.String()), w.Header().Get(idempotency.ReplayedHeader))
	}
	// Output:
	// 201 balance 70 (replayed: "")
	// 201 balance 70 (replayed: "true")
	// 409 The idempotency key was used for another request. Nothing was done. (replayed: "")
}
