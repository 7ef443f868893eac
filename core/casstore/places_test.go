package casstore_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore/castest"
	"github.com/interlock-go/interlock/core/driver"
)

// The entry of a locker that could not leave the line is called when its turn comes, and its process
// declines at once. So the caller behind it does not wait for its time to end.
func TestACallerBehindOneThatLeftDuringAnOutageHasTheLockSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		a, b, c := start(t, server), start(t, server), start(t, server)
		held := a.lock(t, "k")
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan struct{})
		go func() {
			defer close(left)
			_, _ = b.Lock(ctx, "k")
		}()
		time.Sleep(time.Second)
		if line := named(server, "/k/line/"); len(line) != 1 {
			t.Fatalf("%+v; want the locker in line", line)
		}
		b.cut.Store(true)
		cancel()
		<-left
		time.Sleep(time.Minute)
		b.cut.Store(false)
		time.Sleep(30 * time.Second)
		had := make(chan time.Time, 1)
		go func() {
			_ = c.lock(t, "k").Release(t.Context())
			had <- time.Now()
		}()
		time.Sleep(time.Second)
		released := time.Now()
		_ = held.Release(t.Context())
		if took := (<-had).Sub(released); took > time.Second {
			t.Errorf("the caller behind it has the lock %v after the release; want less than a second", took)
		}
	})
}

// A process that asks for leases of many lengths has a beat for each of them.
func TestBeatsThatNoLockNeedsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		a := start(t, server)
		for i := range 150 {
			_ = a.lock(t, "k", core.TTL(time.Duration(5000+i)*time.Millisecond)).Release(t.Context())
		}
		held := a.lock(t, "held")
		if n := len(named(server, "/:beat/")); n < 150 {
			t.Fatalf("%d beats; want more than 150 at first", n)
		}
		time.Sleep(3 * time.Minute)
		if n := len(named(server, "/:beat/")); n != 1 {
			t.Errorf("%d beats; want 1, of the lock that is held", n)
		}
		if err := held.Err(); err != nil {
			t.Errorf("the lock that is held: %v", err)
		}
		_ = held.Release(t.Context())
		store := open(t, server)
		if _, err := store.Acquire(t.Context(), driver.AcquireRequest{Key: "other", Owner: "o", TTL: lease}); err != nil {
			t.Fatal(err)
		}
		if _, err := store.Release(t.Context(), driver.ReleaseRequest{Key: "other", Owner: "o", TTL: lease}); err != nil {
			t.Fatal(err)
		}
		before := len(named(server, "/:beat/"))
		_ = store.Close()
		if n := len(named(server, "/:beat/")); n != before-1 {
			t.Errorf("%d beats of %d after the Close of a store without locks; want one less", n, before)
		}
	})
}

// Readers of four processes come all the time. A writer waits for the readers that are there, and for readers that were
// in line before it: two rounds. A round of a process takes two reads, since a caller can join at the end of another's.
func TestAWriterWaitsForTwoRoundsOfReadersAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const reads, trip, rounds = 50 * time.Millisecond, 2 * time.Millisecond, 3 * seeds / 5
		server := castest.NewMemory()
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for i := range 4 {
			reader := start(t, server)
			for n := range 3 {
				all.Go(func() {
					time.Sleep(time.Duration(3*i+n) * 4 * time.Millisecond)
					for ctx.Err() == nil {
						_ = reader.Do(ctx, "k", func(context.Context) error {
							time.Sleep(reads)
							return nil
						}, core.Shared())
					}
				})
			}
		}
		writer, longest := start(t, server), time.Duration(0)
		for range rounds {
			time.Sleep(200*time.Millisecond + rand.N(reads))
			began := time.Now()
			lease := writer.lock(t, "k")
			longest = max(longest, time.Since(began))
			_ = lease.Release(t.Context())
		}
		stop()
		all.Wait()
		t.Logf("the longest wait of %d: %v", rounds, longest)
		if longest > 2*2*reads+20*trip { // transactions of readers and the writer collide
			t.Errorf("a writer waited %v beside reads of %v; want two rounds and 20 round trips at most", longest, reads)
		}
	})
}

// A thousand callers of a process share one hold. When the process dies, the hold ends with its lease.
func TestAThousandSharersAreOneHoldWhichEndsWithTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lease = 10 * time.Second
		server := castest.NewMemory()
		dies, other := start(t, server, core.Unlisted()), start(t, server)
		before := server.Commits()
		for range 1000 {
			dies.lock(t, "k", core.Shared(), core.Watchdog(lease))
		}
		if n := server.Commits() - before; n > 2 {
			t.Errorf("%d transactions for 1,000 callers that share a lock; want 2 at most", n)
		}
		dies.cut.Store(true)
		began := time.Now()
		_ = other.lock(t, "k", core.Watchdog(lease)).Release(t.Context())
		if took := time.Since(began); took > lease+lease/10 {
			t.Errorf("the lock of a process that died was free after %v; want one lease of %v, and a tenth of it", took, lease)
		}
		dies.cut.Store(false)
	})
}

// All permits of a key were in the entry of the lock: 79 of 200 callers had one, in values of 85 KB.
func TestAThousandPermitsOfAProcessAreSmallEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const permits, callers, most = 1024, 200, 1 << 10
		server := castest.NewMemory()
		m := start(t, server)
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				for range permits / callers {
					if _, err := m.Permit(t.Context(), "k", permits); err != nil {
						t.Errorf("a permit of %d: %v", permits, err)
						return
					}
				}
			})
		}
		all.Wait()
		if n := len(named(server, "/k/place/")); n != callers*(permits/callers) {
			t.Errorf("%d places are taken; want %d", n, callers*(permits/callers))
		}
		for _, e := range server.Entries() {
			if len(e.Value) > most {
				t.Errorf("%s has a value of %d bytes; want %d at most", e.Name, len(e.Value), most)
			}
		}
		view, err := m.store.Look(t.Context(), "k")
		if err != nil || len(view.Holders) != callers*(permits/callers) {
			t.Errorf("an operator sees %d holders, %v; want %d", len(view.Holders), err, callers*(permits/callers))
		}
	})
}

// inLine starts a caller that waits for one of two permits, and returns when it is in line. The channel has the lease.
func inLine(t *testing.T, m *machine) chan *core.Lease {
	t.Helper()
	has := make(chan *core.Lease, 1)
	go func() { has <- m.lock(t, "k", core.Permits(2)) }()
	time.Sleep(20 * time.Millisecond)
	return has
}

// soon returns the lease of a caller that has its turn.
func soon(t *testing.T, has chan *core.Lease, who string) *core.Lease {
	t.Helper()
	select {
	case l := <-has:
		return l
	case <-time.After(50 * time.Millisecond):
		t.Fatalf("%s has no permit 50 ms after the release; want it to be called", who)
		return nil
	}
}

// A release that gave its place up before it knew the line noted the place as taken for good. The process
// refused itself the permits that were kept for it later, each for a second.
func TestAProcessThatHadAPermitHasTheNextThatIsKeptForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		a, b, c := start(t, server, core.Unlisted()), start(t, server, core.Unlisted()), start(t, server, core.Unlisted())
		first, second := b.lock(t, "k", core.Permits(2)), a.lock(t, "k", core.Permits(2))
		other := inLine(t, c)
		_ = second.Release(t.Context()) // it does not know that another process waits
		third := soon(t, other, "the other process")
		again := inLine(t, a)
		_ = first.Release(t.Context())
		fourth := soon(t, again, "the process that had one before")
		_, _ = third.Release(t.Context()), fourth.Release(t.Context())
	})
}

// A release that knew only lockers which had left the line tried to call them again and again, and then left its place
// free: no locker was called, and the process took the place back.
func TestAReleaseCallsALockerThatItDidNotKnow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		machines := make([]*machine, 5)
		for i := range machines {
			machines[i] = start(t, server, core.Unlisted())
		}
		one, two := machines[0].lock(t, "k", core.Permits(2)), machines[1].lock(t, "k", core.Permits(2))
		first, second := inLine(t, machines[2]), inLine(t, machines[3])
		_ = two.Release(t.Context())
		a := soon(t, first, "the first locker") // its call says that the second waits
		_ = one.Release(t.Context())
		c := soon(t, second, "the second locker")
		third := inLine(t, machines[4])
		before := server.Commits()
		_ = a.Release(t.Context())
		d := soon(t, third, "the third locker")
		if n := server.Commits() - before; n > 4 {
			t.Errorf("%d transactions for a release and the next grant; want 4 at most", n)
		}
		_, _ = c.Release(t.Context()), d.Release(t.Context())
	})
}
