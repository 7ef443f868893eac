//go:build long && unix

package examples

import (
	"context"
	"database/sql"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/trust/internal/pgbouncertest"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// database is the ledger that the processes have in common.
type database struct {
	*testing.T
	*sql.DB
}

// connect returns the database of a connection string.
func connect(t *testing.T, dsn string) database {
	t.Helper()
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return database{t, db}
}

// number returns the result of a statement.
func (d database) number(query string) (n int) {
	d.Helper()
	if err := d.QueryRowContext(d.Context(), query).Scan(&n); err != nil {
		d.Fatal(err)
	}
	return n
}

// holds checks the number of payments, the balance of alice, and the unchanged sum of the
// accounts.
func (d database) holds(payments, alice int) {
	d.Helper()
	for query, want := range map[string]int{
		"SELECT count(*) FROM payment":                          payments,
		"SELECT balance FROM account WHERE id = 'alice'":        alice,
		"SELECT sum(balance)::bigint FROM account":              200,
		"SELECT count(*) FROM interlock_record WHERE state='c'": 0,
	} {
		if n := d.number(query); n != want {
			d.Errorf("%s: %d; want %d", query, n, want)
		}
	}
}

// block locks the payments, so that a payment waits between its first row and its last
// one. The function ends that; a second call does nothing.
func (d database) block() (unblock func()) {
	d.Helper()
	tx, err := d.BeginTx(context.Background(), nil)
	if err != nil {
		d.Fatal(err)
	}
	unblock = func() { _ = tx.Rollback() }
	d.Cleanup(unblock)
	if _, err := tx.ExecContext(d.Context(), "LOCK TABLE payment IN SHARE MODE"); err != nil {
		d.Fatal(err)
	}
	return unblock
}

// waiting waits until a payment waits for the lock.
func (d database) waiting() {
	d.Helper()
	for end := time.Now().Add(patience); d.number("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'payment'::regclass") != 1; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			d.Fatal("never: a payment waits for the table")
		}
	}
}

const five = `{"to": "bob", "amount": 5}`

func TestLedger(t *testing.T) {
	path := build(t, "../../examples/ledger", ".")
	for name, test := range map[string]func(t *testing.T, path, dsn string){
		"what a client may ask for":                             asks,
		"a payment of a killed process is made once by another": dies,
		"a process that is told to end finishes its payments":   ends,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, path, pgtest.DSN(t))
		})
	}
	t.Run("behind PgBouncer in transaction mode", func(t *testing.T) {
		asks(t, path, pgbouncertest.Start(t, pgtest.DSN(t), pgbouncertest.Transaction))
	})
}

func asks(t *testing.T, path, dsn string) {
	p, db := start(t, path, dsn), connect(t, dsn)
	first := p.pay("a", five, http.StatusCreated, "payment ", false)
	if again := p.pay("a", five, http.StatusCreated, "payment ", true); again.body != first.body {
		t.Errorf("the replay says %q; the answer was %q", again.body, first.body)
	}
	db.holds(1, 95)
	p.pay("a", `{"to": "bob", "amount": 6}`, http.StatusUnprocessableEntity, "idempotency-key-reused", false)
	p.pay("", five, http.StatusBadRequest, "idempotency-key-missing", false)
	p.pay("b", `{"to": "bob", "amount": 0}`, http.StatusBadRequest, "want", false)
	p.pay("c", `{"to": "mallory", "amount": 1}`, http.StatusNotFound, "no such account", false)
	p.pay("d", `{"to": "bob", "amount": 96}`, http.StatusForbidden, "insufficient funds", false)
	db.holds(1, 95)
	if _, err := db.ExecContext(t.Context(), "UPDATE account SET balance = 100 WHERE id <> 'carol'"); err != nil {
		t.Fatal(err)
	}
	// There would be enough now. But the client has been told that there was not.
	p.pay("d", `{"to": "bob", "amount": 96}`, http.StatusForbidden, "insufficient funds", true)
	db.holds(1, 100)
	p.pay("e", `{"to": "bob", "amount": 96}`, http.StatusCreated, "payment ", false)
	db.holds(2, 4)
	p.stop()
}

func dies(t *testing.T, path, dsn string) {
	p, other, db := start(t, path, dsn, "-lease", "15s"), start(t, path, dsn), connect(t, dsn)
	p.pay("before", five, http.StatusCreated, "payment ", false)
	unblock := db.block()
	dead := make(chan answer, 1)
	go func() { dead <- p.post("a", five) }()
	db.waiting() // the accounts are changed, the payment is not written
	p.kill()
	if a := <-dead; a.err == nil {
		t.Errorf("the client of the killed process got %+v", a)
	}
	unblock()
	last := other.retry("a", five) // until the claim of the killed process lapses
	if last.err != nil || last.status != http.StatusCreated || last.replayed {
		t.Errorf("the retry got %+v", last)
	}
	db.holds(2, 90)
	if again := other.pay("a", five, http.StatusCreated, "payment ", true); again.body != last.body {
		t.Errorf("the replay says %q; the answer was %q", again.body, last.body)
	}
	other.pay("before", five, http.StatusCreated, "payment ", true)
	db.holds(2, 90)
}

func ends(t *testing.T, path, dsn string) {
	p, db := start(t, path, dsn), connect(t, dsn)
	unblock := db.block()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer unblock()
	wg.Go(func() { p.pay("a", five, http.StatusCreated, "payment ", false) })
	db.waiting()
	wg.Go(p.stop)
	p.refuses()
	unblock()
	wg.Wait()
	db.holds(1, 95)
}
