//go:build long && unix

package fencing_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/fencing"
	"github.com/interlock-go/interlock/core/fencing/redisfence"
	"github.com/interlock-go/interlock/internal/redistest"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// counter is a number that holders of a lock read, and write back one larger.
type counter interface {
	read(ctx context.Context, token int64) (int64, error)
	write(ctx context.Context, token, n int64) error
}

// rows is a counter in a database, read and written in two transactions.
type rows struct {
	db                      *sql.DB
	beforeRead, beforeWrite claim
}

func (r rows) read(ctx context.Context, token int64) (n int64, err error) {
	err = inTx(ctx, r.db, sql.LevelDefault, func(tx *sql.Tx) (err error) {
		if err = r.beforeRead(ctx, tx, token); err != nil {
			return err
		}
		n, err = balance(ctx, tx)
		return err
	})
	return n, err
}

func (r rows) write(ctx context.Context, token, n int64) error {
	return inTx(ctx, r.db, sql.LevelDefault, func(tx *sql.Tx) error {
		if err := r.beforeWrite(ctx, tx, token); err != nil {
			return err
		}
		return setBalance(ctx, tx, n)
	})
}

// value is a counter in Redis, claimed when it is read.
type value struct{ *redisfence.Values }

func (v value) read(ctx context.Context, token int64) (int64, error) {
	values, err := v.Claim(ctx, redisfence.Hold{Key: "counter", Token: token})
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(values[0]["n"], 10, 64)
}

func (v value) write(ctx context.Context, token, n int64) error {
	return v.Write(ctx, changed(token, n))
}

func changed(token, n int64) redisfence.Change {
	return redisfence.Change{
		Hold: redisfence.Hold{Key: "counter", Token: token}, Set: map[string]string{"n": strconv.FormatInt(n, 10)},
	}
}

// lateValue is a counter in Redis whose token is checked at the write alone.
type lateValue struct {
	value
	get func(context.Context) (int64, error)
}

func (v lateValue) read(ctx context.Context, _ int64) (int64, error) { return v.get(ctx) }

func (v lateValue) write(ctx context.Context, token, n int64) error {
	return v.Set(ctx, changed(token, n))
}

// Several processes count under a lock that is deleted again and again under its
// holder, which goes on as if it were paused. What was acknowledged has to be in
// the number; without a claim before the read it is not, which proves the test.
func TestUnderABrokenLockOnlyClaimsLoseNothing(t *testing.T) {
	none := func(context.Context, *sql.Tx, int64) error { return nil }
	inRows := func(open func(*testing.T) *sql.DB, beforeRead, beforeWrite claim) func(*testing.T) counter {
		return func(t *testing.T) counter {
			db := open(t)
			prepare(t, db)
			return rows{db, beforeRead, beforeWrite}
		}
	}
	inRedis := func(t *testing.T) lateValue {
		rdb := redistest.Start(t).Client(t)
		v := value{redisfence.New(rdb)}
		if err := v.Set(t.Context(), changed(1, 100)); err != nil {
			t.Fatal(err)
		}
		return lateValue{v, func(ctx context.Context) (int64, error) { return rdb.HGet(ctx, "counter", "n").Int64() }}
	}
	for _, c := range []struct {
		name  string
		open  func(*testing.T) counter
		loses bool
	}{
		{"PostgreSQL without a fence", inRows(pgtestOpen, none, none), true},
		{"PostgreSQL checked when written", inRows(pgtestOpen, none, claims["table"]), true},
		{"PostgreSQL with a table of fences", inRows(pgtestOpen, claims["table"], claims["table"]), false},
		{"PostgreSQL with a column", inRows(pgtestOpen, claims["column"], claims["column"]), false},
		{"SQLite without a fence", inRows(sqlite, none, none), true},
		{"SQLite with a table of fences", inRows(sqlite, claims["table"], claims["table"]), false},
		{"SQLite with a column", inRows(sqlite, claims["column"], claims["column"]), false},
		{"Redis checked when written", func(t *testing.T) counter { return inRedis(t) }, true},
		{"Redis with fenced values", func(t *testing.T) counter { return inRedis(t).value }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			acknowledged, refused, lost := countUnderABrokenLock(t, c.open(t))
			// Whether a lock breaks at the right moment is chance: until it has.
			for again := 0; again < 10 && (c.loses && lost <= 0 || !c.loses && refused == 0); again++ {
				a, r, l := countUnderABrokenLock(t, c.open(t))
				acknowledged, refused, lost = acknowledged+a, refused+r, lost+l
			}
			t.Logf("acknowledged %d, refused %d, lost %d", acknowledged, refused, lost)
			switch {
			case acknowledged == 0:
				t.Error("nothing was written")
			case c.loses && lost <= 0:
				t.Error("nothing was lost: the test shows nothing")
			case !c.loses && lost != 0:
				t.Errorf("%d of %d acknowledged updates were lost", lost, acknowledged)
			case !c.loses && refused == 0:
				t.Error("nothing was refused: the lock was never broken in time")
			}
		})
	}
}

func pgtestOpen(t *testing.T) *sql.DB { return pgtest.Open(t) }

// countUnderABrokenLock counts in four processes' worth of lockers, from 100.
// Every third holder loses its lock after it has read, and writes all the same,
// when somebody else has read too.
func countUnderABrokenLock(t *testing.T, c counter) (acknowledged, refused, lost int64) {
	const lockers, callers = 4, 2
	turns := 30
	if testing.Short() {
		turns = 12
	}
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	var (
		wg      sync.WaitGroup
		b       = newBell()
		yes, no atomic.Int64
	)
	turn := func(locker *core.Locker, broken bool) error {
		lease, err := locker.Lock(t.Context(), "account/42", core.Wait(time.Minute))
		for errors.Is(err, core.ErrLost) { // handed on in the process after it was deleted
			lease, err = locker.Lock(t.Context(), "account/42", core.Wait(time.Minute))
		}
		if err != nil {
			return err
		}
		defer lease.Release(t.Context()) // ErrLost, if it was broken
		// The context is not the lease's: this holder does not notice.
		n, err := c.read(t.Context(), lease.Token())
		b.ring()
		if err == nil && broken {
			heard := b.next()
			err = errors.Join(rdb.Del(t.Context(), lockName).Err(), rdb.Publish(t.Context(), lockName+":free", "").Err())
			timer := time.NewTimer(300 * time.Millisecond)
			defer timer.Stop()
			select {
			case <-heard:
			case <-timer.C: // the others are done
			}
		}
		if err == nil {
			err = c.write(t.Context(), lease.Token(), n+1)
		}
		switch {
		case err == nil:
			yes.Add(1)
		case errors.Is(err, fencing.ErrStale):
			no.Add(1)
		default:
			return err
		}
		return nil
	}
	for range lockers {
		locker := newLocker(t, srv)
		for range callers {
			wg.Go(func() {
				for i := range turns {
					if err := turn(locker, i%3 == 0); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	// What it holds in the end tells how many of them have had an effect.
	n, err := c.read(t.Context(), time.Now().Add(time.Hour).UnixMicro())
	if err != nil {
		t.Fatal(err)
	}
	return yes.Load(), no.Load(), yes.Load() - (n - 100)
}

// Transfers between accounts, each under both locks and in one transaction, while
// locks are deleted under their holders. The claims come in one order whatever the
// order of the accounts, so no two transactions wait for each other.
func TestTransfersUnderBrokenLocks(t *testing.T) {
	plainly := func(
		ctx context.Context, db *sql.DB, _ *core.Lease, _ *sql.TxOptions, fn func(context.Context, *sql.Tx) error,
	) error {
		return inTx(ctx, db, sql.LevelDefault, func(tx *sql.Tx) error { return fn(ctx, tx) })
	}
	for _, c := range []struct {
		name  string
		inTx  transaction
		loses bool
	}{
		{"without a fence", plainly, true},
		{"with fences", fences.InTx, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			made, refused, deadlocks, wrong := transfersUnderBrokenLocks(t, c.inTx)
			// Whether a lock breaks at the right moment is chance: until it has.
			for again := 0; again < 10 && (c.loses && wrong == 0 || !c.loses && refused == 0); again++ {
				m, r, d, w := transfersUnderBrokenLocks(t, c.inTx)
				made, refused, deadlocks, wrong = made+m, refused+r, deadlocks+d, wrong+w
			}
			t.Logf("made %d, refused %d, deadlocks %d, wrong balances %d", made, refused, deadlocks, wrong)
			switch {
			case made == 0:
				t.Error("no transfer was made")
			case c.loses && wrong == 0:
				t.Error("all balances are right: the test shows nothing")
			case !c.loses && (wrong != 0 || deadlocks != 0):
				t.Errorf("%d balances are wrong, %d deadlocks", wrong, deadlocks)
			case !c.loses && refused == 0:
				t.Error("nothing was refused: no lock was broken in time")
			}
		})
	}
}

// transaction is the type of Table.InTx.
type transaction func(
	context.Context, *sql.DB, *core.Lease, *sql.TxOptions, func(context.Context, *sql.Tx) error,
) error

// transfersUnderBrokenLocks moves 1 at a time between three accounts, and counts
// those whose balance is not what the acknowledged transfers make of it.
func transfersUnderBrokenLocks(t *testing.T, inTx transaction) (made, refused, deadlocks, wrong int64) {
	const lockers, callers = 4, 2
	turns := 30
	if testing.Short() {
		turns = 12
	}
	db := pgtest.Open(t)
	prepare(t, db)
	ids := []string{"a", "b", "c"}
	for _, id := range ids {
		if _, err := db.ExecContext(t.Context(), "INSERT INTO accounts (id, balance) VALUES ($1, 1000)", id); err != nil {
			t.Fatal(err)
		}
	}
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	var (
		wg      sync.WaitGroup
		b       = newBell()
		yes, no atomic.Int64
		dead    atomic.Int64
		moved   [3]atomic.Int64
	)
	add := func(ctx context.Context, tx *sql.Tx, id string, n int64) error {
		var balance int64
		if err := tx.QueryRowContext(ctx, "SELECT balance FROM accounts WHERE id = $1", id).Scan(&balance); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = $1 WHERE id = $2", balance+n, id)
		return err
	}
	turn := func(locker *core.Locker, from, to int, broken bool) error {
		keys := []string{"account/" + ids[from], "account/" + ids[to]}
		lease, err := locker.LockAll(t.Context(), keys, core.Wait(time.Minute))
		if errors.Is(err, core.ErrLost) {
			no.Add(1)
			return nil
		}
		if err != nil {
			return err
		}
		defer lease.Release(t.Context()) // ErrLost, if it was broken
		b.ring()
		if broken {
			heard := b.next()
			for _, key := range keys {
				name := "interlock:{" + key + "}"
				err = errors.Join(err, rdb.Del(t.Context(), name).Err(), rdb.Publish(t.Context(), name+":free", "").Err())
			}
			timer := time.NewTimer(300 * time.Millisecond)
			defer timer.Stop()
			select {
			case <-heard:
			case <-timer.C: // the others are done
			}
		}
		err = errors.Join(err, inTx(t.Context(), db, lease, nil, func(ctx context.Context, tx *sql.Tx) error {
			return cmp.Or(add(ctx, tx, ids[from], -1), add(ctx, tx, ids[to], 1))
		}))
		switch {
		case err == nil:
			yes.Add(1)
			moved[from].Add(-1)
			moved[to].Add(1)
		case errors.Is(err, core.ErrLost): // ErrStale too
			no.Add(1)
		case sqlState(err) == "40P01":
			dead.Add(1)
		default:
			return err
		}
		return nil
	}
	for range lockers {
		locker := newLocker(t, srv)
		for range callers {
			wg.Go(func() {
				for i := range turns {
					from := rand.IntN(3)
					if err := turn(locker, from, (from+1+rand.IntN(2))%3, i%3 == 0); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	for i, id := range ids {
		var balance int64
		if err := db.QueryRowContext(t.Context(), "SELECT balance FROM accounts WHERE id = $1", id).Scan(&balance); err != nil {
			t.Fatal(err)
		}
		if balance != 1000+moved[i].Load() {
			wrong++
		}
	}
	return yes.Load(), no.Load(), dead.Load(), wrong
}

// bell tells all who listen of the next ring.
type bell struct {
	mu sync.Mutex
	ch chan struct{}
}

func newBell() *bell { return &bell{ch: make(chan struct{})} }

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.ch)
	b.ch = make(chan struct{})
}

func (b *bell) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ch
}
