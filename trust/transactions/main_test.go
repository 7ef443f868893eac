//go:build long

package transactions

import (
	"context"
	"database/sql"
	"flag"
	"testing"

	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// paymentsFlag is how many payments TestKills makes of each variant.
var paymentsFlag = flag.Int("payments", 0, "`number` of payments of each variant; 0: a short run")

func TestMain(m *testing.M) {
	work()
	flag.Parse()
	pgtest.Main(m)
}

// open returns an empty database and a store in it.
func open(t *testing.T, opts ...pgstore.Option) (*sql.DB, *pgstore.Store) {
	t.Helper()
	db := pgtest.Open(t)
	return db, on(t, db, opts...)
}

// on returns a store in a database.
func on(t *testing.T, db *sql.DB, opts ...pgstore.Option) *pgstore.Store {
	t.Helper()
	store, err := pgstore.New(db, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := store.Migrate(context.Background()); err != nil {
		t.Fatal(err)
	}
	return store
}
