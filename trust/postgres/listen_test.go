//go:build integration && unix

package postgres_test

import (
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
)

// A process that waits for locks and for records has one connection that listens, and hears
// of both, also after it broke.
func TestLocksAndRecordsListenOnOneConnection(t *testing.T) {
	db := lockTable(t)
	hears := listener{dsnOf(t, db) + " application_name=ears"}
	with := func(c *config) { c.Listen = hears }
	here, there := newLocks(t, db, with), newLocks(t, pool(t, dsnOf(t, db)), with)
	released, done := make(chan driver.Signal, 100), make(chan struct{}, 100)
	watch := func(since time.Time) func() {
		return here.Watch("k", since, func(s driver.Signal) { released <- s })
	}
	stop := watch(time.Now())
	defer func() { stop() }()
	defer here.Await("id", time.Now(), func() { done <- struct{}{} })()
	<-done // by Await itself

	claim := func(token string) record.ClaimReply {
		t.Helper()
		rep, err := here.Claim(t.Context(), record.ClaimRequest{
			ID: "id", Token: token, Lease: time.Minute, Retention: time.Hour, Waits: true,
			Deadline: time.Now().Add(patience), Late: func(record.ClaimReply, error) {},
		})
		if err != nil {
			t.Fatal(err)
		}
		return rep
	}
	listeners := func() (pids string) {
		t.Helper()
		if err := db.QueryRowContext(t.Context(), "SELECT coalesce(string_agg(pid::text, ' '), '') FROM pg_stat_activity "+
			"WHERE application_name = 'ears'").Scan(&pids); err != nil {
			t.Fatal(err)
		}
		return pids
	}
	last := ""
	for _, round := range []string{"first", "after the connection was cut"} {
		if rep := claim("first"); rep.State != record.StateGranted {
			t.Fatalf("%s: %+v", round, rep)
		}
		eventually(t, "a duplicate is listed, since the store listens", func() bool {
			rep := claim("second")
			return rep.State == record.StateInFlight && rep.Listed
		})
		if last = listeners(); len(strings.Fields(last)) != 1 {
			t.Errorf("%s: the connections %q listen; want one", round, last)
		}
		for len(done) > 0 {
			<-done
		}
		if err := there.Abandon(t.Context(), record.AbandonRequest{ID: "id", Token: "first", Deadline: time.Now().Add(patience)}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-done:
		case <-time.After(patience):
			t.Fatalf("%s: the end of the claim was not heard", round)
		}

		for _, owner := range []string{"o", "waits"} {
			if _, err := there.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: owner, Waiter: "w", TTL: time.Minute}); err != nil {
				t.Fatal(err)
			}
		}
		stop()
		stop = watch(time.Now())
		if _, err := there.Release(t.Context(), driver.ReleaseRequest{Key: "k", Owner: "o", Deadline: time.Now().Add(patience)}); err != nil {
			t.Fatal(err)
		}
		for end := time.After(patience); ; {
			select {
			case s := <-released:
				if s.Next != "w" {
					continue // to look after the reconnect
				}
			case <-end:
				t.Fatalf("%s: the release was not heard", round)
			}
			break
		}
		if _, err := db.ExecContext(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'ears'"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "there is another connection", func() bool {
			now := listeners()
			return now != "" && !strings.Contains(now, last)
		})
	}
}
