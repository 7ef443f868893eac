//go:build integration && unix

package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/httplock"
)

// granted are the rights of a service on the tables of a store.
const granted = `GRANT SELECT, INSERT, UPDATE, DELETE ON interlock_record TO %[1]s;
GRANT SELECT, INSERT, UPDATE ON interlock_fence TO %[1]s`

// asService returns a database as a role sees it that owns nothing, has these rights,
// and may insert into the ledger. There are a store's tables.
func asService(t *testing.T, rights string) (owner, limited *sql.DB) {
	t.Helper()
	owner, dsn := tables(t)
	schema := schemaOf(dsn)
	role := schema + "_service"
	for _, text := range []string{
		"CREATE ROLE %[1]s LOGIN", "GRANT USAGE ON SCHEMA %[2]s TO %[1]s",
		"CREATE TABLE ledger (payment text, amount bigint)", "GRANT INSERT ON ledger TO %[1]s",
		rights,
	} {
		execute(t, owner, strings.NewReplacer("%[1]s", role, "%[2]s", schema).Replace(text))
	}
	return owner, connect(t, strings.Replace(dsn, "user=postgres", "user="+role, 1))
}

// denied reports whether PostgreSQL denied a right (insufficient_privilege).
func denied(err error) bool {
	var said *pgconn.PgError
	return errors.As(err, &said) && said.Code == "42501"
}

// limitedService makes an endpoint under a lock. Its first payment with the key "fails"
// fails.
func limitedService(t *testing.T, owner *sql.DB, store *pgstore.Store) *service {
	t.Helper()
	engine, err := idempotency.New(store, idempotency.Global(), idempotency.Transactional(), idempotency.Lease(4*measured(t).Lapses()),
		idempotency.Under(core.Serialize(newLocker(t, memstore.New()), "account")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_ = engine.Close(ctx) // without DELETE there is a claim that it cannot give up
	})
	s := &service{T: t, db: owner}
	failed := false
	s.handler = httplock.Idempotent(engine)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tx, err := pgstore.Tx(r.Context())
		if err != nil {
			if !denied(err) {
				t.Errorf("Tx: %v", err)
			}
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		pay(t, r, tx)
		if r.Header.Get("Idempotency-Key") == "fails" && !failed {
			failed = true
			http.Error(w, "failed", http.StatusInternalServerError)
			return
		}
		say(w, "paid")
	}))
	return s
}

// TestRightsOfAService takes each right of the service away once.
func TestRightsOfAService(t *testing.T) {
	for name, c := range map[string]struct {
		revoked string
		paid    int    // the status of a payment
		text    string // of its answer
		again   int    // the status of the retry of a payment that failed; 0: not tried
	}{
		"all":                {"", 200, "paid", 200},
		"no SELECT":          {"SELECT ON interlock_record", 503, "idempotency-unavailable", 503},
		"no INSERT":          {"INSERT ON interlock_record", 503, "idempotency-unavailable", 503},
		"no UPDATE":          {"UPDATE ON interlock_record", 503, "urn:interlock:problem:idempotency-", 0},
		"no DELETE":          {"DELETE ON interlock_record", 200, "paid", 409},
		"no SELECT of fence": {"SELECT ON interlock_fence", 500, "permission denied for table interlock_fence", 500},
		"no INSERT of fence": {"INSERT ON interlock_fence", 500, "permission denied for table interlock_fence", 500},
		"no UPDATE of fence": {"UPDATE ON interlock_fence", 500, "permission denied for table interlock_fence", 500},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rights := granted
			if c.revoked != "" {
				rights += "; REVOKE " + c.revoked + " FROM %[1]s"
			}
			owner, limited := asService(t, rights)
			s := limitedService(t, owner, newStore(t, limited))
			s.want("a", c.paid, c.text)
			if c.paid == 200 {
				s.want("a", 200, "paid")
				s.paid(1)
				s.want("fails", 500, "failed")
			} else {
				s.paid(0)
			}
			if c.again != 0 {
				s.want("fails", c.again, "")
			}
			if c.again != http.StatusConflict {
				return
			}
			// The claim cannot be given up.
			eventually(t, "the claim has lapsed", func() bool { return s.send("fails").StatusCode == http.StatusOK })
			s.paid(2)
		})
	}
}

// TestWhoMigrates has a service without the right to create tables migrate: before there
// are tables, and after a migration tool has run the files.
func TestWhoMigrates(t *testing.T) {
	t.Parallel()
	owner, limited := asService(t, granted+"; GRANT SELECT ON interlock_version TO %[1]s")
	migrate := func(db *sql.DB) error {
		t.Helper()
		return newStore(t, db).Migrate(t.Context())
	}
	if err := migrate(limited); err != nil {
		t.Errorf("there is nothing to do: %v", err)
	}
	execute(t, owner, "DROP TABLE interlock_version, interlock_record, interlock_fence, interlock_lock")
	if err := migrate(limited); !denied(err) {
		t.Errorf("without tables: %v; want that the right is missing", err)
	}
	files, err := fs.Glob(pgstore.Migrations(), "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := fs.ReadFile(pgstore.Migrations(), file)
		if err != nil {
			t.Fatal(err)
		}
		execute(t, owner, string(text))
	}
	if err := migrate(owner); err != nil {
		t.Errorf("over the tables of a migration tool: %v", err)
	}
}

// TestTimeLimitsOfATransaction looks at the limits that a transaction has set, and at one
// that the role has from elsewhere.
func TestTimeLimitsOfATransaction(t *testing.T) {
	t.Parallel()
	owner, limited := asService(t, granted+"; ALTER ROLE %[1]s SET statement_timeout = '3s'")
	s := newService(t, owner, newStore(t, limited), func(w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
		for name, want := range map[string]string{
			"idle_in_transaction_session_timeout": "1min", "lock_timeout": "30s", "statement_timeout": "3s",
		} {
			var set string
			if err := tx.QueryRowContext(r.Context(), "SELECT current_setting($1::text)", name).Scan(&set); err != nil || set != want {
				t.Errorf("%s is %s, %v; want %s", name, set, err, want)
			}
		}
		pay(t, r, tx)
		_, err := tx.ExecContext(r.Context(), "SELECT pg_sleep(60)")
		var said *pgconn.PgError
		if !errors.As(err, &said) || said.Code != "57014" { // query_canceled
			t.Errorf("a long statement: %v", err)
		}
		say(w, "paid")
	}, idempotency.Lease(90*time.Second))
	s.want("a", 503, rolledBack)
	s.paid(0)
}
