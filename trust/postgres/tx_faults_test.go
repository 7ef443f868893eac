//go:build long && unix

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// TestADatabaseThatDiesInACommit finds out the outcome when the database is back.
func TestADatabaseThatDiesInACommit(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	dies, arm, _ := breaking(commit)
	db := (&wire{sent: func(text []byte) error {
		if dies(text) != nil {
			server.Abort(t)
		}
		return nil
	}}).through(t, server.DSN())
	store := newStore(t, db, pgstore.Timeout(time.Second))
	migrate(t, store)
	s := newService(t, server.Open(t), store, func(w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
		pay(t, r, tx)
		say(w, "paid")
	}, idempotency.Lease(5*time.Second))
	for n := range 3 { // executed or not: it is a race of the commit with the end
		key := fmt.Sprint("payment-", n)
		arm()
		if resp := s.send(key); resp.StatusCode != 409 && resp.StatusCode != 200 { // 200: the answer was on its way
			t.Errorf("status %d of a commit that the database dies in; want 200 or 409", resp.StatusCode)
		}
		server.Restart(t)
		eventually(t, "the payment is answered", func() bool { return s.send(key).StatusCode == 200 })
		if made := read[int](t, db, "SELECT count(*) FROM ledger WHERE payment = $1::text", key); made != 1 {
			t.Errorf("paid %d times", made)
		}
	}
}

// TestAPoolWhoseConnectionsAreAllInTransactions has a request come while a handler has
// the only connection, until its claim has lapsed or was renewed over and over.
func TestAPoolWhoseConnectionsAreAllInTransactions(t *testing.T) {
	const lease = 5 * time.Second
	for name, c := range map[string]struct {
		options  func(dsn string) []pgstore.Option
		lost     bool // the claim of the handler that has the connection
		second   int  // the status of the request that comes
		payments int
	}{
		"one pool for all": {func(string) []pgstore.Option { return nil }, true, http.StatusServiceUnavailable, 1},
		"records have a pool of their own": {func(dsn string) []pgstore.Option {
			return []pgstore.Option{pgstore.Records(connect(t, dsn))}
		}, false, http.StatusOK, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plain, dsn := tables(t)
			db := connect(t, dsn)
			db.SetMaxOpenConns(1)
			store := newStore(t, db, append(c.options(dsn), pgstore.IdleTimeout(time.Minute), pgstore.Timeout(time.Second))...)
			began, end := make(chan context.Context, 1), make(chan struct{})
			var once sync.Once
			var cause error
			s := newService(t, plain, store, func(w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
				pay(t, r, tx)
				once.Do(func() {
					began <- r.Context()
					<-end
					cause = context.Cause(r.Context())
				})
				say(w, "paid")
			}, idempotency.Lease(lease))
			var wg sync.WaitGroup
			// Its answer counts, since no other request has taken its key over.
			wg.Go(func() { s.want("a", http.StatusOK, "paid") })
			held := <-began
			until := read[time.Time](t, plain, "SELECT lease_until FROM interlock_record")
			second := make(chan int, 1)
			wg.Go(func() { second <- s.send("b").StatusCode })
			status := 0
			if c.lost {
				<-held.Done()
				status = <-second
			} else {
				eventually(t, "the claim was renewed for long", func() bool {
					return read[time.Time](t, plain, "SELECT min(lease_until) FROM interlock_record").Sub(until) >= lease
				})
			}
			close(end)
			wg.Wait()
			if !c.lost {
				status = <-second
			}
			if lost := errors.Is(cause, core.ErrLost); lost != c.lost {
				t.Errorf("the cause of the handler's context is %v; want a lost claim: %v", cause, c.lost)
			}
			if status != c.second {
				t.Errorf("the second request got %d; want %d", status, c.second)
			}
			s.paid(c.payments)
		})
	}
}
