//go:build integration && unix

package postgres_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/httplock"
)

var errBroke = errors.New("the account has no money")

// The handler of an endpoint with optional keys has one path.
func TestARequestWithoutAKeyHasATransaction(t *testing.T) {
	t.Parallel()
	db, dsn := tables(t)
	execute(t, db, "CREATE TABLE IF NOT EXISTS ledger (payment text, amount bigint)")
	store := newStore(t, db)
	pgxStore := newPgxStore(t, newPool(t, dsn))
	const insert = "INSERT INTO ledger VALUES ($1::text, 1)"
	for name, c := range map[string]struct {
		store record.Store
		pay   func(ctx context.Context, payment string, end func() error) error
	}{
		"database/sql": {store, func(ctx context.Context, payment string, end func() error) error {
			return store.InTx(ctx, func(tx *pgstore.Transaction) error {
				_, err := tx.ExecContext(ctx, insert, payment)
				return errors.Join(err, end())
			})
		}},
		"pgx": {pgxStore, func(ctx context.Context, payment string, end func() error) error {
			return pgxStore.InTx(ctx, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, insert, payment)
				return errors.Join(err, end())
			})
		}},
	} {
		var end func() error
		h := httplock.Idempotent(newEngine(t, c.store, idempotency.Optional()))(http.HandlerFunc(
			func(w http.ResponseWriter, r *http.Request) {
				if err := c.pay(r.Context(), r.Header.Get("Payment"), end); err != nil {
					http.Error(w, err.Error(), http.StatusInternalServerError)
				}
			}))
		for i, ends := range map[string]struct {
			end       func() error
			committed int
		}{
			"success":  {func() error { return nil }, 1},
			"an error": {func() error { return errBroke }, 0},
			"a panic":  {func() error { panic(errBroke) }, 0},
		} {
			for _, key := range []string{"", `"` + name + i + `"`} {
				payment := name + i + key
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/payments", strings.NewReader("{}"))
				r.Header.Set("Payment", payment)
				if key != "" {
					r.Header.Set("Idempotency-Key", key)
				}
				end = ends.end
				func() {
					defer func() { _ = recover() }()
					h.ServeHTTP(httptest.NewRecorder(), r)
				}()
				var n int
				if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM ledger WHERE payment = $1::text", payment).Scan(&n); err != nil || n != ends.committed {
					t.Errorf("%s, key %q, %s: %d payments, %v; want %d", name, key, i, n, err, ends.committed)
				}
			}
		}
	}
	err := store.InTx(t.Context(), func(*pgstore.Transaction) error { return nil })
	if !errors.Is(err, record.ErrNoAttempt) || errors.Is(err, record.ErrNoRecord) {
		t.Errorf("InTx outside of a request returns %v; want ErrNoAttempt: the middleware may be missing", err)
	}
}
