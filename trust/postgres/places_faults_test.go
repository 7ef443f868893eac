//go:build integration && unix

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/pgstore"
)

// permits is how many permits there are of a key in the tests of places.
const permits = 3

// room is the judge of one key, outside of the store. It counts the holders that trust their leases.
type room struct {
	mu              sync.Mutex
	inside          map[*core.Lease]bool // whether it is for itself
	most            int                  // holders that may be inside together
	entries, beside int
	tokens          int64 // the last of a holder for itself
	back, tooMany   int
}

// enter notes a holder, which leaves after a moment. A holder that does not trust its lease any more
// does nothing.
func (r *room) enter(lease *core.Lease, alone bool) {
	r.mu.Lock()
	if lease.Err() != nil {
		r.mu.Unlock()
		return
	}
	others := 0
	for other, itself := range r.inside {
		if other.Err() != nil {
			continue
		}
		if others++; itself || alone {
			r.beside++
		}
	}
	if others >= r.most {
		r.tooMany++
	}
	if alone && lease.Token() <= r.tokens {
		r.back++
	}
	r.entries++
	r.tokens = max(r.tokens, lease.Token())
	r.inside[lease] = alone
	r.mu.Unlock()
	runtime.Gosched()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.inside, lease)
}

func (r *room) seen() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.entries
}

func TestSessionsThatAreCutGiveNoPlaceTooMany(t *testing.T) {
	t.Parallel()
	db, dsn := tables(t)
	kinds := []struct {
		key  string
		opts []core.Option
		room *room
	}{
		{"shared", []core.Option{core.Shared()}, &room{inside: map[*core.Lease]bool{}, most: 1 << 20}},
		{"permits", []core.Option{core.Permits(permits)}, &room{inside: map[*core.Lease]bool{}, most: permits}},
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	for p := range 3 {
		db := connect(t, fmt.Sprint(dsn, " application_name=cut"))
		l := newLocker(t, newStore(t, db, pgstore.Timeout(time.Second)), core.Watchdog(4*measured(t).Lapses()))
		for g := range 6 {
			all.Go(func() {
				for n := g; ctx.Err() == nil; n++ {
					k := kinds[n%len(kinds)]
					opts, alone := k.opts, (n+p)%5 == 0
					if alone {
						opts = nil
					}
					lease, err := l.Lock(ctx, k.key, opts...)
					if err != nil {
						if ctx.Err() == nil && !errors.Is(err, core.ErrUnavailable) && !errors.Is(err, core.ErrLost) {
							t.Errorf("Lock: %v", err)
						}
						continue
					}
					k.room.enter(lease, alone)
					_ = lease.Release(ctx) // the reaper releases it otherwise, or the lease ends
				}
			})
		}
	}
	more := func(what string) {
		t.Helper()
		for _, k := range kinds {
			before := k.room.seen()
			eventually(t, what+" of the key "+k.key, func() bool { return k.room.seen() >= before+40 })
		}
	}
	for range 6 {
		more("holders come before a cut")
		execute(t, db, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'cut'")
	}
	more("holders come after the last cut")
	cancel()
	all.Wait()
	for _, k := range kinds {
		t.Logf("%s: %d holds, %d beside an exclusive one, %d too many, %d tokens back", k.key, k.room.entries, k.room.beside, k.room.tooMany, k.room.back)
		if k.room.beside+k.room.tooMany+k.room.back > 0 {
			t.Errorf("%s: %d holds beside an exclusive one, %d too many, and %d tokens that went back; want none", k.key, k.room.beside, k.room.tooMany, k.room.back)
		}
	}
}

// The place of a process that has died is free when its lease has ended, and a writer comes between
// readers that go on.
func TestPlacesOfTheDeadAreFreeAfterALeaseAndAWriterComesBetweenReaders(t *testing.T) {
	t.Parallel()
	_, dsn := tables(t)
	lapses := measured(t).Lapses()
	dead := newStore(t, connect(t, dsn))
	before := time.Now()
	died, err := core.New(dead, core.Watchdog(lapses))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := died.Lock(t.Context(), "k", core.Permits(1), core.TTL(lapses)); err != nil {
		t.Fatal(err)
	}
	_ = dead.Close() // no request of its comes any more
	l := newLocker(t, newStore(t, connect(t, dsn)))
	next, err := l.Lock(t.Context(), "k", core.Permits(1))
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(before); took < lapses*9/10 {
		t.Errorf("the permit of a process that has died is another's after %v; want its lease of %v first", took, lapses)
	}
	_ = next.Release(t.Context())

	ctx, cancel := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	var rounds [4]atomic.Int64
	for i := range rounds {
		reader := newLocker(t, newStore(t, connect(t, dsn)))
		readers.Go(func() {
			for ctx.Err() == nil {
				shared, err := reader.LockShared(ctx, "book")
				if err != nil {
					continue
				}
				rounds[i].Add(1)
				_ = shared.Release(ctx)
			}
		})
	}
	for i := range rounds {
		eventually(t, "each process reads", func() bool { return rounds[i].Load() > 0 })
	}
	most := int64(0) // rounds of a reader while the writer waits
	for range 5 {
		var before [4]int64
		for i := range rounds {
			before[i] = rounds[i].Load()
		}
		writer, err := l.Lock(t.Context(), "book")
		if err != nil {
			t.Fatalf("a writer beside four reading processes: %v", err)
		}
		for i := range rounds {
			most = max(most, rounds[i].Load()-before[i])
		}
		_ = writer.Release(t.Context())
	}
	t.Logf("a reader has had up to %d rounds while the writer waited", most)
	for i := range rounds {
		before := rounds[i].Load()
		eventually(t, "each process reads after the writer", func() bool { return rounds[i].Load() > before })
	}
	cancel()
	readers.Wait()
}
