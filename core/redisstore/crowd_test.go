package redisstore_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

// TestTwoHundredLockersShareOneKey has three times as many lockers want a key as the
// lock's list has room for. Turns are shared by chance, so the test ends when nine of
// ten lockers have had theirs. TestEachOfTwoHundredProcessesGetsItsTurn of bench/scale
// measures the shares in fake time.
func TestTwoHundredLockersShareOneKey(t *testing.T) {
	t.Parallel()
	const lockers, rounds = 200, 12
	for name, callers := range map[string]int{"one caller each": 1, "two callers each": 2} {
		t.Run(name, func(t *testing.T) {
			srv := redistest.Start(t)
			var stores [4]*redisstore.Store
			for i := range stores {
				s, err := redisstore.New(srv.Client(t), redisstore.Timeout(10*time.Second))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = s.Close() })
				stores[i] = s
			}
			ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
			defer stop()
			var turns, last, without atomic.Int64 // turns: grants to another locker than before
			var grants [lockers]atomic.Int64
			without.Store(lockers)
			use := func(l *core.Locker, i int) {
				for {
					lease, err := l.Lock(ctx, "k")
					if err != nil {
						return
					}
					if grants[i].Add(1) == 1 && without.Add(-1) == lockers/10 {
						stop()
					}
					if last.Swap(int64(i)) != int64(i) && turns.Add(1) == rounds*lockers {
						stop()
					}
					<-time.After(time.Millisecond)
					_ = lease.Release(context.Background())
				}
			}
			var all sync.WaitGroup
			for i := range lockers {
				l, err := core.New(stores[i%len(stores)], core.Turn(5*time.Millisecond, 1000))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = l.Close(context.Background()) })
				for range callers {
					all.Go(func() { use(l, i) })
				}
			}
			all.Wait()
			n := without.Load()
			t.Logf("%d turns; %d of %d lockers had none", turns.Load(), n, lockers)
			if n > lockers/10 {
				t.Errorf("%d of %d lockers got nothing in %d turns", n, lockers, turns.Load())
			}
		})
	}
}

// TestAReleasingLockerDoesNotGetIntoAFullList has a locker release that wants the lock
// again. It gets into a list with room, and not into a full one.
func TestAReleasingLockerDoesNotGetIntoAFullList(t *testing.T) {
	srv := redistest.Start(t)
	store, err := redisstore.New(srv.Client(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	for name, c := range map[string]struct{ waiting, after int }{
		"with room": {waiting: 62, after: 63},
		"full":      {waiting: 63, after: 63},
	} {
		t.Run(name, func(t *testing.T) {
			names := make([]string, c.waiting)
			for i := range names {
				names[i] = strings.Repeat("w", 30) + string(rune('A'+i%26)) + string(rune('A'+i/26))
			}
			owner, key := strings.Repeat("r", 32), "k "+name
			heard := make(chan string, 2)
			defer store.Watch(key, time.Now(), func(s driver.Signal) { heard <- s.Next })()
			if next := <-heard; next != "" { // the subscription is confirmed
				t.Fatalf("heard of %q before the release", next)
			}
			reply, err := store.Acquire(t.Context(), driver.AcquireRequest{
				Key: key, Owner: owner + ":1", TTL: time.Minute, Rest: strings.Join(names, ","),
			})
			if err != nil || !reply.Granted {
				t.Fatal(reply, err)
			}
			_, err = store.Release(t.Context(), driver.ReleaseRequest{
				Key: key, Owner: owner + ":1", Token: reply.Token, TTL: time.Minute, Waiter: owner,
				Deadline: time.Now().Add(time.Minute),
			})
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(<-heard, ",") + 1; n != c.after {
				t.Errorf("%d names are announced, want %d", n, c.after)
			}
		})
	}
}
