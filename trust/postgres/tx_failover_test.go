//go:build long && unix

package postgres_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/httplock"
)

// kept wants that a server has a ledger and records that agree, and that so many payments
// of keys are in it.
func kept(t *testing.T, db *sql.DB, want map[string]int) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "SELECT payment, count(*) FROM ledger GROUP BY payment")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	made, sum := make(map[string]int), 0
	for rows.Next() {
		var key string
		var n int
		if err := rows.Scan(&key, &n); err != nil {
			t.Fatal(err)
		}
		made[key] = n
		sum += n
		if n != 1 {
			t.Errorf("%s was paid %d times", key, n)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	for key, n := range want {
		if made[key] != n {
			t.Errorf("%s is in the ledger %d times; want %d", key, made[key], n)
		}
	}
	if done := read[int](t, db, "SELECT count(*) FROM interlock_record WHERE state = 'd'"); done != sum {
		t.Errorf("%d answers are stored, and %d payments are in the ledger", done, sum)
	}
}

// TestPaymentsOverAFailoverWithSynchronousReplication has clients pay, and send each payment
// again until it is answered, while the primary crashes and its standby is promoted.
func TestPaymentsOverAFailoverWithSynchronousReplication(t *testing.T) {
	t.Parallel()
	primary, standby, route := newPrimary(t, synchronous)
	execute(t, primary.Open(t), "CREATE TABLE ledger (payment text)")
	engine := newEngine(t, over(t, route), idempotency.Transactional(), idempotency.Lease(3*time.Second))
	service := httplock.Idempotent(engine)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		tx, err := pgstore.Tx(r.Context())
		if err == nil {
			_, err = tx.ExecContext(r.Context(), "INSERT INTO ledger VALUES ($1::text)", key)
		}
		if err != nil {
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		say(w, "paid "+key)
	}))

	var mu sync.Mutex
	answered := make(map[string]int)
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(answered)
	}
	send := func(key string) (paid bool) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/payments", strings.NewReader("{}"))
		r.Header.Set("Idempotency-Key", key)
		w := httptest.NewRecorder()
		service.ServeHTTP(w, r)
		body := w.Body.String()
		switch w.Code {
		case http.StatusOK:
			if body != "paid "+key {
				t.Errorf("%s: answer %.200q", key, body)
			}
			return true
		case http.StatusConflict, http.StatusServiceUnavailable:
			if !strings.Contains(body, "idempotency-outcome-unknown") {
				return false
			}
		}
		t.Errorf("%s: status %d, %.200q", key, w.Code, body)
		return false
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var clients sync.WaitGroup
	for c := range 8 {
		clients.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				key := fmt.Sprint("payment-", c, "-", n)
				eventually(t, "the payment is answered", func() bool { return send(key) })
				mu.Lock()
				answered[key] = 1
				mu.Unlock()
			}
		})
	}
	more := func(n int) {
		t.Helper()
		want := count() + n
		eventually(t, "there are more payments", func() bool { return count() >= want })
	}
	more(200)
	primary.Abort(t)
	standby.Promote(t)
	mu.Lock()
	before := make(map[string]int)
	for key := range answered {
		before[key] = 1
	}
	mu.Unlock()
	promoted := standby.Open(t)
	kept(t, promoted, before) // before a request can have reached the promoted server
	route.To(standby)
	more(200)
	cancel()
	clients.Wait()
	kept(t, promoted, answered)
	t.Logf("%d payments, %d of them before the crash", len(answered), len(before))
}

// TestACommitThatAFailoverLost has answered payments with commits that no standby has. The
// effect and the answer are lost together, so a retry pays again, once.
func TestACommitThatAFailoverLost(t *testing.T) {
	t.Parallel()
	primary, standby, route := newPrimary(t)
	replica := standby.Open(t)
	replicated := func(query string) {
		t.Helper()
		eventually(t, query, func() bool {
			var met bool // a standby may not have the tables yet
			return replica.QueryRowContext(t.Context(), query).Scan(&met) == nil && met
		})
	}
	s := newService(t, route.Open(t), over(t, route), func(w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
		if r.Header.Get("Idempotency-Key") == "claimed" && r.Header.Get("Again") == "" {
			replicated("SELECT count(*) = 2 FROM interlock_record")
			primary.Detach(t, standby)
		}
		pay(t, r, tx)
		say(w, "paid")
	}, idempotency.Lease(15*time.Second))
	s.want("kept", 200, "paid")
	replicated("SELECT count(*) = 1 FROM ledger")
	s.want("claimed", 200, "paid") // the standby has its claim, and not its commit
	s.want("lost", 200, "paid")
	s.paid(3)
	primary.Abort(t)
	standby.Promote(t)
	kept(t, replica, map[string]int{"kept": 1, "claimed": 0, "lost": 0})

	route.To(standby)
	for _, key := range []string{"kept", "claimed", "lost"} {
		for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/payments", strings.NewReader("{}"))
			r.Header.Set("Idempotency-Key", key)
			r.Header.Set("Again", "yes")
			w := httptest.NewRecorder()
			s.handler.ServeHTTP(w, r)
			resp := w.Result()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode == http.StatusOK {
				if replayed := resp.Header.Get("Idempotent-Replayed") == "true"; replayed != (key == "kept") {
					t.Errorf("%s: replayed: %v", key, replayed)
				}
				break
			}
			if resp.StatusCode != http.StatusConflict || time.Now().After(end) { // 409: until the lease of a claim ends
				t.Fatalf("%s: status %d, %.200q", key, resp.StatusCode, body)
			}
		}
	}
	kept(t, replica, map[string]int{"kept": 1, "claimed": 1, "lost": 1})
}
