//go:build long && unix

package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// durable returns a store on a server that writes through to the disk.
func durable(b *testing.B) driver.Store {
	b.Helper()
	s := newStore(b, pgtest.Start(b).Open(b))
	migrate(b, s)
	return s
}

// callers are the goroutines of a benchmark, and the keys that they have between them.
var callers = []struct {
	name             string
	goroutines, keys int
}{{"lone", 1, 1}, {"keys=16", 16, 16}, {"keys=64", 64, 64}, {"keys=256", 256, 256}, {"hot=16", 16, 1}}

// BenchmarkLocks takes and releases locks: one goroutine, several with a key each, and
// several with one key in common.
func BenchmarkLocks(b *testing.B) {
	l := newLocker(b, durable(b))
	for _, c := range callers {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			inParallel(b, c.goroutines, func(g int) error {
				lease, err := l.Lock(context.Background(), fmt.Sprint(c.name, g%c.keys))
				if err != nil {
					return err
				}
				return lease.Release(context.Background())
			})
		})
	}
}

// BenchmarkAdvisoryLocks measures as BenchmarkLocks, with PostgreSQL's advisory locks: the
// locks of a session, and the locks of a transaction. They have no lease and no token, and
// write nothing. Each goroutine has its own connection, as each holder needs one.
func BenchmarkAdvisoryLocks(b *testing.B) {
	server := pgtest.Start(b, "max_connections=300")
	const of = "(hashtextextended($1, 0))"
	session := func(ctx context.Context, conn *sql.Conn, key string) error {
		if _, err := conn.ExecContext(ctx, "SELECT pg_advisory_lock"+of, key); err != nil {
			return err
		}
		_, err := conn.ExecContext(ctx, "SELECT pg_advisory_unlock"+of, key)
		return err
	}
	transaction := func(ctx context.Context, conn *sql.Conn, key string) error {
		tx, err := conn.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock"+of, key); err != nil {
			return errors.Join(err, tx.Rollback())
		}
		return tx.Commit()
	}
	for _, way := range []struct {
		name string
		pair func(ctx context.Context, conn *sql.Conn, key string) error
	}{{"session", session}, {"transaction", transaction}} {
		for _, c := range callers {
			b.Run(way.name+"/"+c.name, func(b *testing.B) {
				conns := connections(b, server.Open(b), c.goroutines)
				b.ReportAllocs()
				inParallel(b, c.goroutines, func(g int) error {
					return way.pair(context.Background(), conns[g], fmt.Sprint(c.name, g%c.keys))
				})
			})
		}
	}
}

// connections takes that many connections of a pool, until the benchmark ends.
func connections(b *testing.B, db *sql.DB, n int) []*sql.Conn {
	b.Helper()
	conns := make([]*sql.Conn, n)
	for i := range conns {
		conn, err := db.Conn(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = conn.Close() })
		conns[i] = conn
	}
	return conns
}

// BenchmarkHotKey has four processes with a caller each take turns on one key, in sections of 2 ms, and the same with
// what PostgreSQL has itself. It reports the sections a second and the time from the end of a section to the next.
func BenchmarkHotKey(b *testing.B) {
	srv := pgtest.Start(b)
	migrate(b, newStore(b, srv.Open(b)))
	execute(b, srv.Open(b), "CREATE TABLE hot (id int PRIMARY KEY); INSERT INTO hot VALUES (1)")
	interlock := func(opts ...pgstore.Option) func(b *testing.B) (section func(f func()) error) {
		return func(b *testing.B) (section func(f func()) error) {
			b.Helper()
			l := newLocker(b, newStore(b, srv.Open(b), opts...))
			return func(f func()) error {
				lease, err := l.Lock(context.Background(), "hot")
				if err != nil {
					return err
				}
				f()
				return lease.Release(context.Background())
			}
		}
	}
	transaction := func(take string) func(b *testing.B) (section func(f func()) error) {
		return func(b *testing.B) (section func(f func()) error) {
			b.Helper()
			db := srv.Open(b)
			return func(f func()) error {
				tx, err := db.BeginTx(context.Background(), nil)
				if err != nil {
					return err
				}
				if _, err := tx.ExecContext(context.Background(), take); err != nil {
					return errors.Join(err, tx.Rollback())
				}
				f()
				return tx.Commit()
			}
		}
	}
	for _, way := range []struct {
		name string
		open func(b *testing.B) (section func(f func()) error)
	}{
		{"hearing", interlock(pgstore.Listen(listener{srv.DSN()}))},
		{"looking", interlock()},
		{"for update", transaction("SELECT FROM hot WHERE id = 1 FOR UPDATE")},
		{"advisory", transaction("SELECT pg_advisory_xact_lock(1)")},
	} {
		b.Run(way.name, func(b *testing.B) {
			var sections [4]func(f func()) error
			for i := range sections {
				sections[i] = way.open(b)
			}
			var mu sync.Mutex // for the race detector
			var ended time.Time
			var waits []time.Duration
			inParallel(b, len(sections), func(g int) error {
				return sections[g](func() {
					mu.Lock()
					defer mu.Unlock()
					if now := time.Now(); !ended.IsZero() {
						waits = append(waits, now.Sub(ended))
					}
					time.Sleep(2 * time.Millisecond)
					ended = time.Now()
				})
			})
			slices.Sort(waits)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "sections/s")
			if len(waits) > 0 {
				b.ReportMetric(float64(waits[len(waits)/2].Microseconds())/1000, "hand-over-ms")
			}
		})
	}
}

// BenchmarkRefused asks for a lock that another owner holds.
func BenchmarkRefused(b *testing.B) {
	s := durable(b)
	ask := func(owner string) error {
		_, err := s.Acquire(context.Background(), driver.AcquireRequest{Key: "k", Owner: owner, Waiter: "w", TTL: time.Hour})
		return err
	}
	for _, owner := range []string{"holder", "other"} {
		if err := ask(owner); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := ask("other"); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRenew1000Locks renews the leases of 1,000 locks in one call.
func BenchmarkRenew1000Locks(b *testing.B) {
	s := durable(b)
	batch := make([]driver.Renewal, 1000)
	var all sync.WaitGroup
	for i := range batch {
		batch[i] = driver.Renewal{Key: fmt.Sprint("k", i), Owner: "o", TTL: time.Hour}
		all.Go(func() {
			rep, err := s.Acquire(context.Background(), driver.AcquireRequest{Key: batch[i].Key, Owner: "o", TTL: time.Minute})
			if err != nil || !rep.Granted {
				b.Error(rep, err)
			}
		})
	}
	all.Wait()
	b.ReportAllocs()
	for b.Loop() {
		for i := range batch {
			batch[i].TTL += time.Second // else there is nothing to write
		}
		s.Renew(context.Background(), batch, func(i int, _ bool, err error) {
			if err != nil {
				b.Error(i, err)
			}
		})
	}
}

// inParallel spreads b.N calls over goroutines.
func inParallel(b *testing.B, goroutines int, f func(g int) error) {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(b.N))
	var all sync.WaitGroup
	b.ResetTimer()
	for g := range goroutines {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				if err := f(g); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}
