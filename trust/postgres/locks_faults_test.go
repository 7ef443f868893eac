//go:build integration && unix

package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// outcome is the outcome of a request.
type outcome struct {
	rep driver.Reply
	err error
}

func TestCallersLeaveWhileTheServerHangs(t *testing.T) {
	t.Parallel()
	db, dsn := tables(t)
	var gate sync.RWMutex // held for writing while nothing passes
	var held atomic.Int64 // statements that the gate has kept from passing
	w := &wire{sending: func(text []byte) error {
		if bytes.Contains(text, []byte("pg_relation_size")) {
			return nil // a look at the size of the table, once a second
		}
		held.Add(1)
		gate.RLock()
		defer gate.RUnlock()
		return nil
	}}
	s := newStore(t, w.through(t, dsn))
	take(t, s, "warm", "o")

	gate.Lock()
	open := sync.OnceFunc(gate.Unlock)
	defer open()
	held.Store(0)
	const n, workers = 12, 4
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	late, left := make(chan outcome, 2*n), make(chan error, n)
	for i := range n {
		var deadline time.Time
		if i == n-1 {
			deadline = time.Now().Add(10 * time.Millisecond)
		}
		go func() {
			_, err := s.Acquire(ctx, driver.AcquireRequest{
				Key: fmt.Sprint("k", i), Owner: "o", TTL: measured(t).Holds(), Deadline: deadline,
				Late: func(rep driver.Reply, err error) { late <- outcome{rep, err} },
			})
			left <- err
		}()
		if i < workers { // each has one under way, and the others wait
			eventually(t, "a worker waits for the server", func() bool { return held.Load() > int64(i) })
		}
	}
	for i := range n {
		if i == 1 { // the first to leave was the request with a deadline
			cancel()
		}
		if err := receive(t, "a caller leaves", left); !errors.Is(err, driver.ErrPending) {
			t.Errorf("a caller that leaves gets %v; want ErrPending", err)
		}
	}
	release := make(chan error, 1)
	go func() { release <- free(t, s, "warm", "o") }()
	open()

	granted, unsent := 0, 0
	for range n {
		switch out := receive(t, "Late is called", late); {
		case out.rep.Granted:
			granted++
		case errors.Is(out.err, driver.ErrNotReady) && !out.rep.Ambiguous:
			unsent++
		default:
			t.Errorf("late: %+v, %v", out.rep, out.err)
		}
	}
	if granted == 0 || unsent < n-workers {
		t.Errorf("%d were granted late and %d not sent; want one granted at least, and %d not sent", granted, unsent, n-workers)
	}
	if err := receive(t, "the release ends", release); err != nil {
		t.Errorf("the release: %v", err)
	}
	if err := s.Close(); err != nil { // waits for all that could call Late
		t.Error(err)
	}
	if len(late) > 0 {
		t.Error("Late was called twice")
	}
	if held := read[int](t, db, "SELECT count(*) FROM interlock_lock WHERE record::json->>'owner' <> ''"); held != granted {
		t.Errorf("%d locks are held, and %d requests were granted: a request that was said to be unsent was sent", held, granted)
	}
}

func TestALostReplyDoesNotLoseTheLock(t *testing.T) {
	t.Parallel()
	_, dsn := tables(t)
	lost, arm, _ := breaking([]byte("UPDATE "))
	s := newStore(t, (&wire{answered: lost}).through(t, dsn))
	take := func(owner string) driver.Reply {
		t.Helper()
		return takeAs(t, s, driver.AcquireRequest{Key: "k", Owner: owner, Late: func(rep driver.Reply, err error) {
			t.Errorf("late: %+v, %v", rep, err)
		}})
	}
	if rep := take("first"); !rep.Granted || rep.Ambiguous {
		t.Fatalf("%+v", rep)
	}
	arm()
	if err := free(t, s, "k", "first"); err != nil {
		t.Errorf("a release whose first reply was lost: %v", err)
	}
	arm()
	before := time.Now()
	rep := take("second")
	if !rep.Granted || !rep.Ambiguous {
		t.Errorf("a grant whose first reply was lost: %+v; want it granted, and ambiguous", rep)
	}
	if rep.Sent.Before(before) || rep.Sent.After(time.Now()) {
		t.Errorf("sent at %v", rep.Sent)
	}
	if rep := take("third"); rep.Granted || rep.Holder != "second" {
		t.Errorf("%+v; want it held by the second", rep)
	}
	if err := free(t, s, "k", "second"); err != nil {
		t.Error(err)
	}
	if rep := take("third"); !rep.Granted || rep.Ambiguous {
		t.Errorf("%+v", rep)
	}
}

// One row that another transaction has locked must not cost the other leases of a batch
// their renewals.
func TestARowLockedByOthersDelaysItsOwnRequestsOnly(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	s := newStore(t, db, pgstore.Timeout(time.Second)) // a row that is locked is waited for a quarter of it
	const n, locked = 50, 7
	var batch []driver.Renewal
	for i := range n {
		key := fmt.Sprint("k", i)
		take(t, s, key, "o")
		batch = append(batch, driver.Renewal{Key: key, Owner: "o", TTL: 2 * measured(t).Holds()})
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	execute(t, tx, fmt.Sprintf("SELECT FROM interlock_lock WHERE key = 'k%d' FOR UPDATE", locked))
	ctx, cancel := context.WithDeadline(t.Context(), soon(t))
	defer cancel()
	var renewed atomic.Int64
	s.Renew(ctx, batch, func(i int, _ bool, err error) {
		switch {
		case i == locked:
			if !errors.Is(err, driver.ErrUnavailable) {
				t.Errorf("the lease of the row that is locked: %v", err)
			}
		case err != nil:
			t.Errorf("lease %d: %v", i, err)
		case renewed.Add(1) == n-1:
			cancel() // all others have their locks
		}
	})
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	s.Renew(t.Context(), batch[locked:locked+1], func(_ int, _ bool, err error) {
		if err != nil {
			t.Errorf("when the row is free again: %v", err)
		}
	})
}

func TestSessionsThatAreCutOverlapNoLocks(t *testing.T) {
	t.Parallel()
	db, dsn := tables(t)
	var j judge
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	for range 2 {
		process := connect(t, dsn+" application_name=cut")
		j.compete(ctx, t, &all, newLocker(t, newStore(t, process, pgstore.Timeout(time.Second)), core.Watchdog(4*measured(t).Lapses())), 8, 4)
	}
	for range 8 {
		j.more(t, "the locks go on after a cut", 50)
		execute(t, db, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'cut'")
	}
	j.more(t, "the locks go on after the last cut", 50)
	cancel()
	all.Wait()
	j.verdict(t)
}

// A grant is on the disk before its holder gets it, also against the session's default. A
// release need not be.
func TestGrantsAndTokensSurviveCrashesOfTheServer(t *testing.T) {
	t.Parallel()
	srv := pgtest.Start(t, "synchronous_commit=off", "wal_writer_delay=10s", "wal_writer_flush_after=0")
	s := newStore(t, srv.Open(t), pgstore.Timeout(time.Second))
	migrate(t, s)
	var j judge
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	for range 2 {
		j.compete(ctx, t, &all, newLocker(t, newStore(t, srv.Open(t), pgstore.Timeout(time.Second)), core.Watchdog(4*measured(t).Lapses())), 8, 4)
	}
	for round := range 2 {
		j.more(t, "the locks are used", 50)
		key := fmt.Sprint("kept", round)
		eventually(t, "a lock is kept", func() bool {
			rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: key, Owner: "o", TTL: measured(t).Holds()})
			return err == nil && rep.Granted
		})
		srv.Abort(t)
		srv.Restart(t)
		s.Renew(t.Context(), []driver.Renewal{{Key: key, Owner: "o", Asked: true}}, func(_ int, _ bool, err error) {
			if err != nil {
				t.Errorf("after the restart: %v", err)
			}
		})
	}
	j.more(t, "the locks go on after the last restart", 50)
	cancel()
	all.Wait()
	j.verdict(t)
}

// A server that takes no writes is not ready: it is a standby, or was demoted.
func TestAServerThatTakesNoWritesIsNotReady(t *testing.T) {
	t.Parallel()
	_, dsn := tables(t)
	s := newStore(t, connect(t, dsn+" default_transaction_read_only=on"))
	rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "o", TTL: time.Minute})
	if !errors.Is(err, driver.ErrNotReady) || rep.Ambiguous {
		t.Errorf("%+v, %v; want ErrNotReady, and certain", rep, err)
	}
}

func TestLocksAtOtherIsolationLevels(t *testing.T) {
	for _, level := range []string{"repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			_, dsn := tables(t)
			strict := connect(t, dsn+" default_transaction_isolation='"+strings.ReplaceAll(level, " ", `\ `)+"'")
			var j judge
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var all sync.WaitGroup
			for range 2 {
				j.compete(ctx, t, &all, newLocker(t, newStore(t, strict)), 4, 2)
			}
			j.more(t, "the locks are used", 200)
			cancel()
			all.Wait()
			j.verdict(t)
		})
	}
}

func TestAClosedStoreSaysSo(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	s := newStore(t, db)
	ask := func(key string) (driver.Reply, error) {
		return s.Acquire(t.Context(), driver.AcquireRequest{Key: key, Owner: "o", TTL: time.Minute})
	}
	if rep := take(t, s, "k", "o"); !rep.Granted {
		t.Fatalf("%+v", rep)
	}
	defer s.Calls("w1", func(driver.Call) {})()
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
	if err := free(t, s, "k", "o"); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Release: %v", err)
	}
	s.Renew(t.Context(), []driver.Renewal{{Key: "k", Owner: "o", TTL: time.Minute}}, func(_ int, _ bool, err error) {
		if !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("Renew: %v", err)
		}
	})
	s.Calls("w1", func(driver.Call) {})()
	if err := db.PingContext(t.Context()); err != nil {
		t.Errorf("the pool was closed, too: %v", err)
	}
}

// A caller that holds the connections of the pool must not make the store lose a request
// that it could still send.
func TestAnExhaustedPoolIsWaitedFor(t *testing.T) {
	t.Parallel()
	_, dsn := tables(t)
	small := connect(t, dsn)
	small.SetMaxOpenConns(2)
	s := newStore(t, small, pgstore.Timeout(4*time.Second))
	var taken []func() error
	for range 2 {
		conn, err := small.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		taken = append(taken, conn.Close)
	}
	got := make(chan outcome, 1)
	go func() {
		rep, err := s.Acquire(t.Context(), driver.AcquireRequest{
			Key: "k", Owner: "o", TTL: time.Minute, Deadline: soon(t), Late: func(driver.Reply, error) {},
		})
		got <- outcome{rep, err}
	}()
	waits := small.Stats().WaitCount
	eventually(t, "a second try waits for a connection", func() bool { return small.Stats().WaitCount >= waits+2 })
	given := time.Now()
	for _, giveBack := range taken {
		if err := giveBack(); err != nil {
			t.Error(err)
		}
	}
	out := receive(t, "the lock is asked for", got)
	if out.err != nil || !out.rep.Granted || out.rep.Ambiguous {
		t.Errorf("%+v, %v; want it granted, and certain: nothing was sent before", out.rep, out.err)
	}
	if out.rep.Sent.Before(given.Add(-time.Second)) { // it may be shortly before it was sent
		t.Errorf("it is said to be sent %v before there was a connection", given.Sub(out.rep.Sent))
	}
}
