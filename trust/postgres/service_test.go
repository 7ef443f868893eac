//go:build integration && unix

package postgres_test

import (
	"bytes"
	"context"
	"database/sql"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/httplock"
)

// service is an endpoint that makes payments.
type service struct {
	*testing.T
	db      *sql.DB
	handler http.Handler
	runs    atomic.Int64
}

// newService makes an endpoint of a handler that gets the transaction of its request.
func newService(t *testing.T, db *sql.DB, store record.Store, h func(http.ResponseWriter, *http.Request, *pgstore.Transaction), opts ...idempotency.Option) *service {
	t.Helper()
	s := &service{T: t, db: db}
	execute(t, db, "CREATE TABLE IF NOT EXISTS ledger (payment text, amount bigint)")
	engine := newEngine(t, store, append([]idempotency.Option{idempotency.Transactional()}, opts...)...)
	s.handler = httplock.Idempotent(engine)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.runs.Add(1)
		tx, err := pgstore.Tx(r.Context())
		if err != nil {
			t.Logf("Tx: %v", err)
			http.Error(w, "no transaction", http.StatusInternalServerError)
			return
		}
		h(w, r, tx)
	}))
	return s
}

// newEngine makes an engine with one space of keys.
func newEngine(tb testing.TB, store record.Store, opts ...idempotency.Option) *idempotency.Engine {
	tb.Helper()
	engine, err := idempotency.New(store, append([]idempotency.Option{idempotency.Global()}, opts...)...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithDeadline(context.Background(), soon(tb))
		defer cancel()
		if err := engine.Close(ctx); err != nil {
			tb.Error(err)
		}
	})
	return engine
}

// pay makes a payment in a transaction.
func pay(t *testing.T, r *http.Request, tx *pgstore.Transaction) {
	t.Helper()
	_, err := tx.ExecContext(r.Context(), "INSERT INTO ledger VALUES ($1::text, 1)", r.Header.Get("Idempotency-Key"))
	if err != nil {
		t.Errorf("paying: %v", err)
	}
}

// send sends a request with a key.
func (s *service) send(key string) *http.Response {
	s.Helper()
	r := httptest.NewRequestWithContext(s.Context(), http.MethodPost, "/payments", strings.NewReader("{}"))
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	func() {
		defer func() { _ = recover() }() // net/http does so
		s.handler.ServeHTTP(w, r)
	}()
	return w.Result()
}

// want sends a request, and wants a status and a text in the body. On a machine that stands
// still the engine may have no time to ask for the record: then the claim, if it was made,
// is given up again.
func (s *service) want(key string, status int, text string) *http.Response {
	s.Helper()
	for away, end := false, soon(s); ; time.Sleep(10 * time.Millisecond) {
		resp := s.send(key)
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			s.Fatal(err)
		}
		resp.Body = io.NopCloser(bytes.NewReader(body))
		away = away || bytes.Contains(body, []byte("idempotency-unavailable"))
		if resp.StatusCode == status || !away || resp.StatusCode < 409 || time.Now().After(end) {
			return s.wantOf(resp, status, text)
		}
	}
}

// wantOf wants a status and a text in the body of an answer.
func (s *service) wantOf(resp *http.Response, status int, text string) *http.Response {
	s.Helper()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.Fatal(err)
	}
	if resp.StatusCode != status || !strings.Contains(string(body), text) {
		s.Errorf("answer %d %.200q; want %d %q", resp.StatusCode, body, status, text)
	}
	return resp
}

// paid wants so many payments in the ledger.
func (s *service) paid(want int) {
	s.Helper()
	if n := read[int](s, s.db, "SELECT count(*) FROM ledger"); n != want {
		s.Errorf("%d payments in the ledger; want %d", n, want)
	}
}

// say writes an answer.
func say(w io.Writer, text string) {
	_, _ = io.WriteString(w, text) // the recorder takes everything
}

// states are the states of the records.
const states = "SELECT coalesce(string_agg(state::text, ''), '') FROM interlock_record"
