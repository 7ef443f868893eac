//go:build long && unix

package postgres_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/gather"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

const (
	debitOne   = "UPDATE account SET balance = balance - 1 WHERE id = 'account/1' RETURNING balance"
	debitBatch = "UPDATE account SET balance = balance - $1 WHERE id = 'account/1' RETURNING balance"
)

// BenchmarkHotAccount debits one account, with fsync, by the way and the number of callers. The store of
// the locks is the same server. "4 lockers" are four lockers with a pool each, as in four processes. The
// metric debits/s is the throughput of all callers together, items the mean size of a batch.
//
//	go test -tags=integration,long -run '^$' -bench HotAccount -benchtime 5s ./postgres
func BenchmarkHotAccount(b *testing.B) {
	for _, c := range []struct{ callers, lockers int }{{16, 1}, {128, 1}, {128, 4}} {
		for _, way := range hotWays {
			name := fmt.Sprintf("%d callers/%d lockers/%s", c.callers, c.lockers, way.name)
			b.Run(name, func(b *testing.B) { hotAccount(b, way.debits, c.callers, c.lockers) })
		}
	}
}

// hotWays are the ways to debit an account. A way returns the function of a process for one debit.
var hotWays = []struct {
	name   string
	debits func(b *testing.B, p *hotProcess) func(ctx context.Context) error
}{
	{"FOR UPDATE", func(_ *testing.B, p *hotProcess) func(context.Context) error {
		return func(ctx context.Context) error {
			return p.inTx(ctx, "SELECT balance FROM account WHERE id = 'account/1' FOR UPDATE", debitOne)
		}
	}},
	{"atomic UPDATE", func(_ *testing.B, p *hotProcess) func(context.Context) error {
		return func(ctx context.Context) error {
			var balance int64
			return p.db.QueryRowContext(ctx, debitOne).Scan(&balance)
		}
	}},
	{"advisory lock", func(_ *testing.B, p *hotProcess) func(context.Context) error {
		return func(ctx context.Context) error { return p.inTx(ctx, "SELECT pg_advisory_xact_lock(1)", debitOne) }
	}},
	{"a lock each", func(_ *testing.B, p *hotProcess) func(context.Context) error {
		return func(ctx context.Context) error {
			return p.locker.Do(ctx, "account/1", func(ctx context.Context) error { return p.inTx(ctx, "SELECT 1", debitOne) })
		}
	}},
	{"gathered", func(_ *testing.B, p *hotProcess) func(context.Context) error {
		group := gather.New(p.locker, func(ctx context.Context, _ string, batch []int64) ([]int64, error) {
			p.batches.Add(1)
			var balance int64
			return batch, p.db.QueryRowContext(ctx, debitBatch, len(batch)).Scan(&balance)
		})
		return func(ctx context.Context) error {
			_, err := group.Do(ctx, "account/1", 1)
			return err
		}
	}},
	{"idempotent, a lock each", func(b *testing.B, p *hotProcess) func(context.Context) error {
		engine := newEngine(b, p.store, idempotency.Transactional(), idempotency.Under(core.Serialize(p.locker, "account/1")))
		return requests(httplock.Idempotent(engine)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			tx, err := pgstore.Tx(r.Context())
			if err == nil {
				_, err = tx.ExecContext(r.Context(), debitOne)
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		})))
	}},
	{"idempotent, FOR UPDATE", func(b *testing.B, p *hotProcess) func(context.Context) error {
		engine := newEngine(b, p.store, idempotency.Transactional())
		return requests(httplock.Idempotent(engine)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			tx, err := pgstore.Tx(r.Context())
			if err == nil {
				_, err = tx.ExecContext(r.Context(), "SELECT balance FROM account WHERE id = 'account/1' FOR UPDATE")
			}
			if err == nil {
				_, err = tx.ExecContext(r.Context(), debitOne)
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		})))
	}},
	{"idempotent, gathered", func(b *testing.B, p *hotProcess) func(context.Context) error {
		batches := pgstore.Gather(p.store, p.locker, func(ctx context.Context, tx *pgstore.Transaction, _ string, batch []int64) ([]int64, error) {
			p.batches.Add(1)
			_, err := tx.ExecContext(ctx, debitBatch, len(batch))
			return batch, err
		})
		engine := newEngine(b, p.store, idempotency.Transactional())
		return requests(httplock.Idempotent(engine)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := batches.Do(r.Context(), "account/1", 1); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		})))
	}},
}

// requests returns a function that sends a request with a new key.
func requests(h http.Handler) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader("{}"))
		r.Header.Set("Idempotency-Key", "hot-"+strconv.FormatInt(benchKeys.Add(1), 10))
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != http.StatusOK {
			return fmt.Errorf("%d %s", w.Code, w.Body)
		}
		return nil
	}
}

// hotProcess has a pool and a locker.
type hotProcess struct {
	db      *sql.DB
	store   *pgstore.Store
	locker  *core.Locker
	batches atomic.Int64
}

// inTx runs two statements in a transaction.
func (p *hotProcess) inTx(ctx context.Context, first, second string) error {
	tx, err := p.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, first); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, second); err != nil {
		return err
	}
	return tx.Commit()
}

// hotAccount makes b.N debits by some callers, and checks the balance.
func hotAccount(b *testing.B, way func(b *testing.B, p *hotProcess) func(ctx context.Context) error, callers, lockers int) {
	b.Helper()
	server := pgtest.Start(b, "max_connections=300")
	first := server.Open(b)
	execute(b, first, "CREATE TABLE account (id text PRIMARY KEY, balance bigint)")
	execute(b, first, "INSERT INTO account VALUES ('account/1', 0)")
	benchRecords(b, first)
	var next atomic.Int64
	var work sync.WaitGroup
	processes := make([]*hotProcess, lockers)
	debits := make([]func(ctx context.Context) error, lockers)
	for i := range processes {
		db := server.Open(b)
		db.SetMaxOpenConns(200 / lockers)
		db.SetMaxIdleConns(200 / lockers)
		p := &hotProcess{db: db, store: newStore(b, db)}
		locker, err := core.New(p.store)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = locker.Close(context.Background()) })
		p.locker = locker
		processes[i], debits[i] = p, way(b, p)
	}
	b.ResetTimer()
	for caller := range callers {
		work.Go(func() {
			for next.Add(1) <= int64(b.N) {
				if err := debits[caller%lockers](b.Context()); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	work.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "debits/s")
	batches := int64(0)
	for _, p := range processes {
		batches += p.batches.Load()
	}
	if batches > 0 {
		b.ReportMetric(float64(b.N)/float64(batches), "items")
	}
	if balance := read[int64](b, first, "SELECT balance FROM account"); balance != -int64(b.N) {
		b.Errorf("the balance is %d after %d debits; want %d", balance, b.N, -b.N)
	}
}
