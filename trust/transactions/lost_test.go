//go:build long

package transactions

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// TestACommitWhoseReplyIsLost cuts the connection around the first commit of a request.
func TestACommitWhoseReplyIsLost(t *testing.T) {
	server := pgtest.Start(t)
	for name, c := range map[string]struct {
		at    func(cut func() bool) *commits
		first int // the status
		paid  int // after the first answer
	}{
		"not sent":            {func(cut func() bool) *commits { return &commits{sending: cut} }, 503, 0},
		"executed, not heard": {func(cut func() bool) *commits { return &commits{answered: cut} }, 200, 1},
	} {
		t.Run(name, func(t *testing.T) {
			plain := server.Open(t)
			if _, err := plain.ExecContext(t.Context(), "DROP SCHEMA public CASCADE; CREATE SCHEMA public"); err != nil {
				t.Fatal(err)
			}
			cuts := 1
			armed := false
			db := pool(t, server.DSN(), c.at(func() bool {
				if !armed || cuts == 0 {
					return false
				}
				cuts--
				return true
			}))
			store := on(t, db)
			s := newService(t, plain, store, func(w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
				pay(t, r, tx)
				say(w, "paid")
			})
			armed = true
			s.want("a", c.first, "")
			s.paid(c.paid)
			if cuts != 0 {
				t.Error("no commit was cut")
			}
			s.want("a", 200, "paid")
			s.paid(1)
		})
	}
}

// TestADatabaseThatDiesInACommit finds out the outcome when the database is back.
func TestADatabaseThatDiesInACommit(t *testing.T) {
	server := pgtest.Start(t)
	die := false
	db := pool(t, server.DSN(), &commits{sent: func() bool {
		if die {
			die = false
			server.Abort(t)
		}
		return false
	}})
	store := on(t, db)
	s := newService(t, server.Open(t), store, func(w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
		pay(t, r, tx)
		say(w, "paid")
	}, idempotency.Lease(5*time.Second))
	for n := range 3 { // executed or not: it is a race of the commit with the end
		die = true
		key := "payment-" + strconv.Itoa(n)
		if resp := s.send(key); resp.StatusCode != 409 && resp.StatusCode != 200 { // 200: the answer was on its way
			t.Errorf("status %d of a commit that the database dies in; want 200 or 409", resp.StatusCode)
		}
		server.Restart(t)
		status := 0
		for end := time.Now().Add(time.Minute); status != 200 && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			status = s.send(key).StatusCode
		}
		var made int
		if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM ledger WHERE payment = $1::text", key).Scan(&made); err != nil || made != 1 || status != 200 {
			t.Errorf("status %d, paid %d times, %v; want 200, and once", status, made, err)
		}
	}
}
