//go:build integration && unix

package postgres_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/internal/logtest"
	"github.com/interlock-go/interlock/pgxstore"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// newPgxStore returns a store on a pool of pgx.
func newPgxStore(t *testing.T, pool *pgxpool.Pool) *pgxstore.Store {
	t.Helper()
	s, err := pgxstore.New(pool, patiently(t)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// newPgxService makes an endpoint on a pool, as a process has it. Its handler pays through
// pgx, and leaves as programs do that end their own transactions.
func newPgxService(t *testing.T, pool *pgxpool.Pool, dsn string) *service {
	t.Helper()
	store := newPgxStore(t, pool)
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return newService(t, connect(t, dsn), store, func(w http.ResponseWriter, r *http.Request, _ *pgstore.Transaction) {
		key := r.Header.Get("Idempotency-Key")
		if err := payThroughPgx(r.Context(), key); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		if strings.HasPrefix(key, "fails") {
			http.Error(w, "no", http.StatusInternalServerError)
		}
	})
}

func payThroughPgx(ctx context.Context, key string) error {
	tx, err := pgxstore.Tx(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	batch := &pgx.Batch{}
	batch.Queue("INSERT INTO ledger VALUES ($1, 1)", key)
	return tx.SendBatch(ctx, batch).Close()
}

func TestAHandlerUsesItsTransactionThroughPgx(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	s := newPgxService(t, newPool(t, dsn), dsn)
	for _, c := range []struct {
		key              string
		status, payments int
		replayed         string
	}{{"a", 200, 1, ""}, {"a", 200, 1, "true"}, {"fails", 500, 1, ""}, {"fails", 500, 1, ""}, {"b", 200, 2, ""}} {
		if resp := s.want(c.key, c.status, ""); resp.Header.Get("Idempotent-Replayed") != c.replayed {
			t.Errorf("%s: replayed %q; want %q", c.key, resp.Header.Get("Idempotent-Replayed"), c.replayed)
		}
		s.paid(c.payments)
	}
}

// TestASmallPoolOfPgxIsKnown has the locks of a store share a pool of pgx with payments: they
// keep none of its connections.
func TestASmallPoolOfPgxIsKnown(t *testing.T) {
	t.Parallel()
	_, dsn := tables(t)
	pool := newPool(t, dsn, func(config *pgxpool.Config) { config.MaxConns = 4 })
	var log logtest.Log
	s, err := pgxstore.New(pool, append(patiently(t), pgstore.Logger(log.Logger()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	take(t, s, "k", "o")
	eventually(t, "the log says once that the pool is small", func() bool { return log.Count("max_open_connections=4") == 1 })
}
