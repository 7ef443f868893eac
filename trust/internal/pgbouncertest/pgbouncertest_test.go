//go:build long && unix

package pgbouncertest_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-go/interlock/trust/internal/pgbouncertest"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// A client of a session keeps its connection to the server, one of transactions does not
// while another client holds that.
func TestAPoolSharesConnectionsAsItsModeSays(t *testing.T) {
	for mode, keeps := range map[string]bool{pgbouncertest.Session: true, pgbouncertest.Transaction: false} {
		t.Run(mode, func(t *testing.T) {
			direct := pgtest.DSN(t)
			through := pgbouncertest.Start(t, direct, mode, "default_pool_size = 5")
			one, two := connect(t, through), connect(t, through)
			table := "CREATE TABLE t (a int)"
			if _, err := connect(t, direct).Exec(t.Context(), table); err != nil {
				t.Fatal(err)
			}
			if _, err := one.Exec(t.Context(), "INSERT INTO t VALUES (1)"); err != nil {
				t.Errorf("it is another schema: %v", err)
			}
			before := pid(t, one)
			tx, err := two.Begin(t.Context()) // takes the connection that the first has left, if any
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(t.Context()) }()
			if _, err := tx.Exec(t.Context(), "SELECT 1"); err != nil {
				t.Fatal(err)
			}
			if after := pid(t, one); (after == before) != keeps {
				t.Errorf("on the server's connections %d and %d; want the same: %v", before, after, keeps)
			}
		})
	}
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	return conn
}

func pid(t *testing.T, conn *pgx.Conn) (id int) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&id); err != nil {
		t.Fatal(err)
	}
	return id
}

func TestStatementsWithArgumentsPassAPoolOfTransactions(t *testing.T) {
	direct := pgtest.DSN(t)
	pooled := pgbouncertest.Start(t, direct, pgbouncertest.Transaction)
	one, two := connect(t, pooled), connect(t, pooled)
	for i := range 10 {
		for _, conn := range []*pgx.Conn{one, two} {
			var got int
			if err := conn.QueryRow(t.Context(), "SELECT $1::int + 1", i).Scan(&got); err != nil || got != i+1 {
				t.Fatal(got, err)
			}
		}
	}
}
