//go:build integration && unix

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// outcome is what a request has ended with.
type outcome struct {
	rep driver.Reply
	err error
}

func TestCallersLeaveWhileTheServerHangs(t *testing.T) {
	db := lockTable(t)
	net, dsn := newRelay(t, db)
	s := newLocks(t, pool(t, dsn+" application_name=hangs"), func(c *config) { c.Timeout = 20 * time.Second })
	take := func(ctx context.Context, key string, deadline time.Time, late chan<- outcome) (driver.Reply, error) {
		return s.Acquire(ctx, driver.AcquireRequest{
			Key: key, Owner: "owner of " + key, TTL: time.Minute, Deadline: deadline,
			Late: func(rep driver.Reply, err error) { late <- outcome{rep, err} },
		})
	}
	if rep, err := take(t.Context(), "warm", time.Time{}, nil); err != nil || !rep.Granted {
		t.Fatalf("%+v, %v", rep, err)
	}
	eventually(t, "the store has looked at the size of the table", func() (looked bool) {
		if err := db.QueryRowContext(t.Context(), "SELECT EXISTS (SELECT FROM pg_stat_activity "+
			"WHERE application_name = 'hangs' AND state = 'idle' AND query LIKE '%pg_relation_size%')").Scan(&looked); err != nil {
			t.Fatal(err)
		}
		return looked && net.owed.Load() == 0
	})

	net.gate.Lock() // nothing passes
	const n, workers = 12, 4
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	late, left := make(chan outcome, 2*n), make(chan error, n)
	begin := time.Now()
	for i := range n {
		var deadline time.Time
		if i < workers { // those of which a statement is under way
			deadline = time.Now().Add(3 * time.Second)
		}
		go func() {
			_, err := take(ctx, fmt.Sprint("k", i), deadline, late)
			left <- err
		}()
		if i < workers { // each has one under way, and the others wait
			eventually(t, "a worker waits for the server", func() bool { return net.held.Load() > int64(i) })
		}
	}
	for i := range n {
		if i == workers {
			cancel() // the first have left at their deadline
		}
		if err := <-left; !errors.Is(err, driver.ErrPending) {
			t.Errorf("a caller that leaves gets %v; want ErrPending", err)
		}
	}
	if took := time.Since(begin); took > 15*time.Second {
		t.Errorf("the callers left after %v", took)
	}
	release := make(chan error)
	go func() {
		_, err := s.Release(ctx, driver.ReleaseRequest{Key: "warm", Owner: "owner of warm", Deadline: time.Now().Add(patience)})
		release <- err
	}()
	time.Sleep(100 * time.Millisecond) // the release has come behind them, which nothing shows
	net.gate.Unlock()

	granted, unsent := 0, 0
	for range n {
		select {
		case out := <-late:
			switch {
			case out.rep.Granted:
				granted++
			case errors.Is(out.err, driver.ErrNotReady) && !out.rep.Ambiguous:
				unsent++
			default:
				t.Errorf("late: %+v, %v", out.rep, out.err)
			}
		case <-time.After(patience):
			t.Fatal("Late was not called")
		}
	}
	if granted == 0 || unsent < n-workers {
		t.Errorf("%d were granted late and %d not sent; want one granted at least, and %d not sent", granted, unsent, n-workers)
	}
	if err := <-release; err != nil {
		t.Errorf("the release: %v", err)
	}
	if err := s.Close(); err != nil { // waits for all that could call Late
		t.Error(err)
	}
	if len(late) > 0 {
		t.Error("Late was called twice")
	}
	held := 0
	if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM interlock_lock WHERE owner IS NOT NULL").Scan(&held); err != nil {
		t.Fatal(err)
	}
	if held != granted {
		t.Errorf("%d locks are held, and %d requests were granted: one that was said to be unsent was sent", held, granted)
	}
}

func TestALostReplyDoesNotLoseTheLock(t *testing.T) {
	db := lockTable(t)
	net, dsn := newRelay(t, db)
	s := newLocks(t, pool(t, dsn), slowly)
	never := func(rep driver.Reply, err error) { t.Errorf("late: %+v, %v", rep, err) }
	take := func(owner string) (driver.Reply, error) {
		return s.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: owner, TTL: time.Minute, Late: never})
	}
	if rep, err := take("first"); err != nil || !rep.Granted || rep.Ambiguous {
		t.Fatalf("%+v, %v", rep, err)
	}
	free := func(owner string) error {
		_, err := s.Release(t.Context(), driver.ReleaseRequest{Key: "k", Owner: owner, TTL: time.Minute, Deadline: time.Now().Add(patience)})
		return err
	}
	net.lose.Store(true)
	if err := free("first"); err != nil {
		t.Errorf("a release whose first reply was lost: %v", err)
	}
	net.lose.Store(true)
	before := time.Now()
	rep, err := take("second")
	if err != nil || !rep.Granted || !rep.Ambiguous {
		t.Errorf("a grant whose first reply was lost: %+v, %v; want it granted, and ambiguous", rep, err)
	}
	if rep.Sent.Before(before) || time.Since(rep.Sent) > patience {
		t.Errorf("sent at %v", rep.Sent)
	}
	if rep, err := take("third"); err != nil || rep.Granted || rep.Holder != "second" {
		t.Errorf("%+v, %v; want it held by the second", rep, err)
	}
	if err := free("second"); err != nil {
		t.Error(err)
	}
	if rep, err := take("third"); err != nil || !rep.Granted || rep.Ambiguous {
		t.Errorf("%+v, %v", rep, err)
	}
}

// One row that another transaction has locked must not cost the other leases of a batch
// their renewals, nor the other callers their locks.
func TestARowLockedByOthersDelaysItsOwnRequestsOnly(t *testing.T) {
	db := lockTable(t)
	s := newLocks(t, db, func(c *config) { c.Timeout = 4 * time.Second })
	const n = 50
	var batch []driver.Renewal
	for i := range n {
		key := fmt.Sprint("k", i)
		if rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: key, Owner: "o", TTL: time.Minute}); err != nil || !rep.Granted {
			t.Fatalf("%+v, %v", rep, err)
		}
		batch = append(batch, driver.Renewal{Key: key, Owner: "o", TTL: time.Hour})
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(t.Context(), "SELECT FROM interlock_lock WHERE key = 'k7' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	s.Renew(ctx, batch, func(i int, _ bool, err error) {
		if blocked := i == 7; blocked != errors.Is(err, driver.ErrUnavailable) && blocked != errors.Is(err, driver.ErrNotReady) || !blocked && err != nil {
			t.Errorf("lease %d: %v", i, err)
		}
	})
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	s.Renew(t.Context(), batch[7:8], func(_ int, _ bool, err error) {
		if err != nil {
			t.Errorf("when the row is free again: %v", err)
		}
	})
}

func TestSessionsThatAreCutOverlapNoLocks(t *testing.T) {
	srv := pgtest.Start(t)
	db := srv.Open(t)
	makeLocks(t, newLocks(t, db))
	var j judge
	ctx := j.span(t, 5*time.Second, 200)
	var all sync.WaitGroup
	for range 2 {
		process := pool(t, srv.DSN()+" application_name=locker")
		j.compete(ctx, t, &all, newLocker(t, newLocks(t, process), core.Watchdog(3*time.Second)), 8, 4)
	}
	cuts, sessions := 0, 0
	for ctx.Err() == nil {
		var n int
		if err := db.QueryRowContext(t.Context(), "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "+
			"WHERE application_name = 'locker'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		cuts++
		sessions += n
		before := j.sections.Load()
		eventually(t, "the locks go on after a cut", func() bool { return ctx.Err() != nil || j.sections.Load() > before+50 })
	}
	all.Wait()
	t.Logf("%d sessions in %d cuts", sessions, cuts)
	j.verdict(t, 200)
	if sessions < cuts {
		t.Errorf("%d sessions were cut in %d cuts", sessions, cuts)
	}
}

func TestTokensSurviveCrashesOfTheServer(t *testing.T) {
	restarts := 4
	if testing.Short() {
		restarts = 2
	}
	srv := pgtest.Start(t)
	db := srv.Open(t)
	makeLocks(t, newLocks(t, db))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var j judge
	var all sync.WaitGroup
	for range 2 {
		process := pool(t, srv.DSN())
		j.compete(ctx, t, &all, newLocker(t, newLocks(t, process), core.Watchdog(3*time.Second)), 8, 4)
	}
	for range restarts {
		before := j.sections.Load()
		eventually(t, "the locks go on after a restart", func() bool { return j.sections.Load() > before+100 })
		srv.Abort(t)
		srv.Restart(t)
	}
	before := j.sections.Load()
	eventually(t, "the locks go on after the last restart", func() bool { return j.sections.Load() > before+100 })
	cancel()
	all.Wait()
	j.verdict(t, 100*int64(restarts))
}

// A grant is on the disk before its holder knows of it, whatever the session's default
// says. A release need not be.
func TestGrantsAreFlushed(t *testing.T) {
	srv := pgtest.Start(t, "synchronous_commit=off", "wal_writer_delay=10s", "wal_writer_flush_after=0")
	db := srv.Open(t)
	makeLocks(t, newLocks(t, db))
	s := newLocks(t, srv.Open(t), func(c *config) { c.Sweep = -1 })
	for round := range 3 {
		key := fmt.Sprint("k", round)
		rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: key, Owner: "o", TTL: time.Hour})
		if err != nil || !rep.Granted {
			t.Fatalf("%+v, %v", rep, err)
		}
		srv.Abort(t)
		srv.Restart(t)
		s.Renew(t.Context(), []driver.Renewal{{Key: key, Owner: "o", Asked: true}}, func(_ int, _ bool, err error) {
			if err != nil {
				t.Errorf("after the restart: %v", err)
			}
		})
	}
}

// A server that takes no writes is not ready: it is a standby, or one that was demoted.
func TestAServerThatTakesNoWritesIsNotReady(t *testing.T) {
	db := lockTable(t)
	s := newLocks(t, pool(t, dsnOf(t, db)+" default_transaction_read_only=on"), slowly)
	rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "o", TTL: time.Minute})
	if !errors.Is(err, driver.ErrNotReady) || rep.Ambiguous {
		t.Errorf("%+v, %v; want ErrNotReady, and certain", rep, err)
	}
}

func TestLocksAtOtherIsolationLevels(t *testing.T) {
	db := lockTable(t)
	for _, level := range []string{"repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			strict := pool(t, dsnOf(t, db)+" default_transaction_isolation='"+strings.ReplaceAll(level, " ", `\ `)+"'")
			var j judge
			ctx := j.span(t, 2*time.Second, 20)
			var all sync.WaitGroup
			for range 2 {
				j.compete(ctx, t, &all, newLocker(t, newLocks(t, strict)), 4, 2)
			}
			all.Wait()
			j.verdict(t, 20)
		})
	}
}

func TestAClosedStoreSaysSo(t *testing.T) {
	db := lockTable(t)
	s := newLocks(t, db)
	ask := func(key string) (driver.Reply, error) {
		return s.Acquire(t.Context(), driver.AcquireRequest{Key: key, Owner: "o", TTL: time.Minute})
	}
	if rep, err := ask("k"); err != nil || !rep.Granted {
		t.Fatalf("%+v, %v", rep, err)
	}
	defer s.Watch("k", time.Now(), func(driver.Signal) {})()
	var all sync.WaitGroup
	for i := range 100 { // under way when the store closes
		all.Go(func() {
			rep, err := ask(fmt.Sprint(i))
			if (err == nil) != rep.Granted || err != nil && !errors.Is(err, driver.ErrUnavailable) {
				t.Errorf("%+v, %v", rep, err)
			}
		})
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	all.Wait()
	if rep, err := ask("k"); !errors.Is(err, driver.ErrUnavailable) || rep.Ambiguous {
		t.Errorf("Acquire: %+v, %v", rep, err)
	}
	release := driver.ReleaseRequest{Key: "k", Owner: "o", Deadline: time.Now().Add(patience)}
	if _, err := s.Release(t.Context(), release); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Release: %v", err)
	}
	s.Renew(t.Context(), []driver.Renewal{{Key: "k", Owner: "o", TTL: time.Minute}}, func(_ int, _ bool, err error) {
		if !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("Renew: %v", err)
		}
	})
	s.Watch("k", time.Now(), func(driver.Signal) {})()
	if err := db.PingContext(t.Context()); err != nil {
		t.Errorf("the pool was closed, too: %v", err)
	}
}

// A caller that holds the connections of the pool must not make the store lose a request
// that it could still send.
func TestAnExhaustedPoolIsWaitedFor(t *testing.T) {
	db := lockTable(t)
	small := pool(t, dsnOf(t, db))
	small.SetMaxOpenConns(2)
	s := newLocks(t, small, func(c *config) { c.Timeout = 4 * time.Second })
	var taken []func() error
	for range 2 {
		conn, err := small.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		taken = append(taken, conn.Close)
	}
	given := make(chan time.Time, 1)
	time.AfterFunc(4800*time.Millisecond, func() {
		given <- time.Now()
		for _, giveBack := range taken {
			if err := giveBack(); err != nil {
				t.Error(err)
			}
		}
	})
	rep, err := s.Acquire(t.Context(), driver.AcquireRequest{
		Key: "k", Owner: "o", TTL: time.Minute, Deadline: time.Now().Add(patience), Late: func(driver.Reply, error) {},
	})
	if err != nil || !rep.Granted || rep.Ambiguous {
		t.Errorf("%+v, %v; want it granted, and certain: nothing was sent before", rep, err)
	}
	if early := (<-given).Sub(rep.Sent); early > 0 {
		t.Errorf("it is said to be sent %v before there was a connection", early)
	}
}
