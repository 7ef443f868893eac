//go:build long

package transactions

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/internal/redistest"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

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
			dsn := pgtest.DSN(t)
			plain, db := connect(t, dsn), connect(t, dsn)
			db.SetMaxOpenConns(1)
			store := on(t, db, append(c.options(dsn), pgstore.IdleTimeout(time.Minute))...)
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
			var until time.Time
			if err := plain.QueryRowContext(t.Context(), "SELECT lease_until FROM interlock_record").Scan(&until); err != nil {
				t.Fatal(err)
			}
			second := make(chan int, 1)
			wg.Go(func() { second <- s.send("b").StatusCode })
			status := 0
			if c.lost {
				<-held.Done()
				status = <-second
			} else {
				redistest.Eventually(t, time.Minute, func(ctx context.Context) error {
					var least time.Time
					err := plain.QueryRowContext(ctx, "SELECT min(lease_until) FROM interlock_record").Scan(&least)
					if err == nil && least.Sub(until) < lease {
						err = errors.New("the claim was not renewed for long")
					}
					return err
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

// connect returns a pool of connections.
func connect(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}
