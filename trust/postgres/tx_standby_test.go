//go:build long && unix

package postgres_test

import (
	"database/sql"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// drivers are pools for the reactions of drivers to a time limit: they close the
// connection, as pgx does by default, or take the answer that comes when they have asked
// the server to cancel. Both ask it.
func drivers(t *testing.T, server *pgtest.Server) map[string]*sql.DB {
	t.Helper()
	config, err := pgx.ParseConfig(server.DSN())
	if err != nil {
		t.Fatal(err)
	}
	config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: time.Minute}
	}
	asking := stdlib.OpenDB(*config)
	t.Cleanup(func() { _ = asking.Close() })
	return map[string]*sql.DB{"closing": server.Open(t), "cancelling": asking}
}

// stateOf is the state of a record on a server, empty if it has none.
func stateOf(t *testing.T, db *sql.DB, id string) string {
	t.Helper()
	return read[string](t, db, "SELECT coalesce(max(state::text), '') FROM interlock_record WHERE id = $1::text", id)
}

// TestRecordsThatTheSynchronousStandbyLacks has statements cancelled that wait for the
// standby. PostgreSQL then keeps their changes on the primary alone, which shows it. The
// standby may be promoted at any time, so none of it may be answered.
func TestRecordsThatTheSynchronousStandbyLacks(t *testing.T) {
	t.Parallel()
	primary, standby, _ := newPrimary(t, synchronous)
	plain, replica := primary.Open(t), standby.Open(t)
	for name, db := range drivers(t, primary) {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, db, pgstore.Timeout(300*time.Millisecond))
			const short, patience = 700 * time.Millisecond, time.Minute
			claim := func(id, token string, transactional bool, within time.Duration) (record.ClaimReply, error) {
				return s.Claim(t.Context(), record.ClaimRequest{
					ID: name + id, Token: token, Lease: time.Minute, Retention: time.Hour, Transactional: transactional,
					Deadline: time.Now().Add(within), Late: func(record.ClaimReply, error) {},
				})
			}
			commit := func(id, token string, within time.Duration) (record.CommitReply, error) {
				return s.Commit(t.Context(), record.CommitRequest{
					ID: name + id, Token: token, Generation: 1, Response: []byte("paid"), Retention: time.Hour, Deadline: time.Now().Add(within),
				})
			}
			unknown := func(what string, err error) {
				t.Helper()
				if !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrPending) {
					t.Errorf("%s without the standby: %v; want that it is not known", what, err)
				}
			}
			for _, id := range []string{"done", "unknown"} {
				if rep, err := claim(id, "first", false, patience); err != nil || rep.State != record.StateGranted {
					t.Fatalf("%s: %+v, %v", id, rep, err)
				}
			}
			execute(t, plain, "UPDATE interlock_record SET lease_until = clock_timestamp(), marked = true WHERE id = $1::text", name+"unknown")

			// arrives wants that the outcome of a request is not known, and that the primary has
			// it: on a busy machine the request may not get there in its time.
			arrives := func(what, id, state string, request func() error) {
				t.Helper()
				for end := time.Now().Add(patience); ; {
					unknown(what, request())
					if stateOf(t, plain, name+id) == state || time.Now().After(end) { // it is looked at below
						return
					}
				}
			}

			primary.Detach(t, standby)
			for range 2 {
				arrives("a commit", "done", "d", func() error { _, err := commit("done", "first", short); return err })
				_, err := claim("done", "second", false, short)
				unknown("a replay", err)
				_, err = commit("done", "second", short)
				unknown("a commit of an attempt that lost its claim", err)
				arrives("a claim", "new", "c", func() error { _, err := claim("new", "first", false, short); return err })
			}
			arrives("a resolution", "unknown", "d", func() error {
				return s.Resolve(t.Context(), record.ResolveRequest{
					ID: name + "unknown", Token: "second", Response: []byte("paid"), Retention: time.Hour, Deadline: time.Now().Add(short),
				})
			})
			for range 2 { // which need not be flushed
				if rep, err := claim("transactional", "first", true, patience); err != nil || rep.State != record.StateGranted {
					t.Errorf("a transactional claim: %+v, %v; want it granted", rep, err)
				}
			}
			for id, want := range map[string]string{"done": "d", "new": "c", "unknown": "d"} {
				if got := stateOf(t, plain, name+id); got != want {
					t.Errorf("the primary has %s in state %q; want %q, or nothing was to be answered", id, got, want)
				}
				if got := stateOf(t, replica, name+id); got == want {
					t.Errorf("the standby has %s in state %q", id, got)
				}
			}

			primary.Attach(t, standby)
			if rep, err := claim("done", "second", false, patience); err != nil || rep.State != record.StateCompleted || rep.Response != "paid" {
				t.Errorf("a replay with the standby: %+v, %v", rep, err)
			}
			if rep, err := commit("done", "first", patience); err != nil || rep.State != record.StateGranted {
				t.Errorf("a commit with the standby: %+v, %v", rep, err)
			}
			if rep, err := claim("new", "first", false, patience); err != nil || rep.State != record.StateGranted {
				t.Errorf("a claim with the standby: %+v, %v", rep, err)
			}
		})
	}
}

// TestAPaymentThatTheSynchronousStandbyLacks commits while the standby is away. No client
// gets the answer before the standby has it.
func TestAPaymentThatTheSynchronousStandbyLacks(t *testing.T) {
	t.Parallel()
	primary, standby, _ := newPrimary(t, synchronous)
	plain := primary.Open(t)
	for name, db := range drivers(t, primary) {
		t.Run(name, func(t *testing.T) {
			s := newService(t, plain, newStore(t, db, pgstore.Timeout(time.Second)), func(w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
				pay(t, r, tx)
				primary.Detach(t, standby)
				say(w, "paid")
			})
			s.want(name, http.StatusConflict, "idempotency-in-flight")
			const paid = "SELECT count(*) FROM ledger WHERE payment = $1::text"
			if visible := read[int](t, plain, paid, name); visible != 1 {
				t.Errorf("the primary shows %d payments; want 1, or nothing was to be answered", visible)
			}
			s.want(name, http.StatusServiceUnavailable, "idempotency-unavailable")
			primary.Attach(t, standby)
			var resp *http.Response
			eventually(t, "the standby has confirmed it", func() bool {
				resp = s.send(name)
				return resp.StatusCode != http.StatusServiceUnavailable
			})
			s.wantOf(resp, http.StatusOK, "paid")
			if s.runs.Load() != 1 {
				t.Errorf("the handler ran %d times", s.runs.Load())
			}
			// A commit waits until the standby has it on disk, and not until it shows it.
			there := standby.Open(t)
			eventually(t, "the standby shows the payment", func() bool { return read[int](t, there, paid, name) == 1 })
			kept(t, there, map[string]int{name: 1})
		})
	}
}

// TestConnectionsToAStandbyAreGivenUp has a process begin while a name leads to the standby.
// When it leads to the primary, the standby still answers.
func TestConnectionsToAStandbyAreGivenUp(t *testing.T) {
	t.Parallel()
	primary, standby, route := newPrimary(t)
	replica := standby.Open(t)
	eventually(t, "the standby has the tables", func() bool { return read[bool](t, replica, "SELECT to_regclass('interlock_lock') IS NOT NULL") })
	route.To(standby)
	store := over(t, route)
	s := newService(t, primary.Open(t), store, func(w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
		pay(t, r, tx)
		say(w, "paid")
	})
	l := newLocker(t, store)
	s.want("refused", http.StatusServiceUnavailable, "idempotency-unavailable")
	if _, err := l.TryLock(t.Context(), "refused"); !errors.Is(err, driver.ErrNotReady) {
		t.Errorf("a lock on the standby: %v", err)
	}
	route.To(primary)
	trying(t, func() error {
		lease, err := l.TryLock(t.Context(), "k")
		if err == nil {
			err = lease.Release(t.Context())
		}
		return err
	})
	var resp *http.Response
	eventually(t, "a payment is made", func() bool {
		resp = s.send("k")
		return resp.StatusCode == http.StatusOK
	})
	s.wantOf(resp, http.StatusOK, "paid")
	s.paid(1)
}
