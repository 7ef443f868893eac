package core_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
)

// TestLocksExcludeWhateverBecomesOfRequests has callers of three lockers use a few
// keys in every way there is, while requests are late, lost or executed without
// anybody hearing of it. Nobody may be granted what another still trusts, tokens
// grow, and in the end nothing is left.
func TestLocksExcludeWhateverBecomesOfRequests(t *testing.T) {
	for seed := range uint64(randomRuns) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { atRandom(t, seed) })
		})
	}
}

func atRandom(t *testing.T, seed uint64) {
	const lease = 3 * time.Second
	s := newStore()
	var mu sync.Mutex // of the random numbers, and of who holds what
	random := rand.New(rand.NewPCG(seed, 1))
	upTo := func(d time.Duration) time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return time.Duration(random.Int64N(int64(d)))
	}
	one := func(of int) bool {
		mu.Lock()
		defer mu.Unlock()
		return random.IntN(of) == 0
	}
	some := func(d time.Duration, of int) time.Duration {
		if one(of) {
			return upTo(d)
		}
		return upTo(time.Millisecond)
	}
	s.Intercept(func(memstore.Request) memstore.Fault {
		f := memstore.Fault{Before: some(2*lease, 30), After: some(2*lease, 30)}
		if one(20) {
			f.Err, f.Executed, f.Ambiguous = core.ErrUnavailable, !one(3), true
			if one(2) {
				f.Err, f.Ambiguous = driver.ErrNotReady, f.Executed
			}
		}
		return f
	})
	trusted := map[string]map[*core.Lease]bool{}
	last := map[string]int64{}
	granted := func(l *core.Lease) {
		mu.Lock()
		defer mu.Unlock()
		for _, key := range l.Keys() {
			for other := range trusted[key] {
				if err := other.Err(); err == nil && l.Err() == nil {
					t.Errorf("%s has two holders", key)
				}
			}
			if token, _ := l.TokenFor(key); token <= last[key] {
				t.Errorf("%s: token %d after %d", key, token, last[key])
			} else {
				last[key] = token
			}
			if trusted[key] == nil {
				trusted[key] = map[*core.Lease]bool{}
			}
			trusted[key][l] = true
		}
	}
	over := func(l *core.Lease) {
		mu.Lock()
		defer mu.Unlock()
		for _, key := range l.Keys() {
			delete(trusted[key], l)
		}
	}
	use := func(l *core.Locker) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond+upTo(4*lease))
		defer cancel()
		if one(3) {
			ctx = t.Context()
		}
		opts := []core.Option{core.Wait(time.Millisecond + upTo(2*lease))}
		if one(4) {
			opts = append(opts, core.TTL(lease))
		}
		if one(6) {
			opts = append(opts, core.MaxHold(time.Millisecond+upTo(lease)))
		}
		keys := []string{fmt.Sprint(upTo(3))}
		if one(5) {
			keys = append(keys, fmt.Sprint(upTo(3)))
		}
		var held *core.Lease
		var err error
		if len(keys) == 1 && one(4) {
			held, err = l.TryLock(ctx, keys[0])
		} else {
			held, err = l.LockAll(ctx, keys, opts...)
		}
		if err != nil {
			return
		}
		granted(held)
		time.Sleep(some(2*lease, 5))
		if one(4) {
			if again, err := l.Lock(held.Context(), keys[0]); err == nil {
				defer again.Release(ctx)
			}
		}
		if one(4) {
			_ = held.Check(ctx)
		}
		over(held)
		_ = held.Release(ctx)
	}
	var lockers []*core.Locker
	var all sync.WaitGroup
	for range 3 {
		l := newLocker(t, s, core.Watchdog(lease))
		lockers = append(lockers, l)
		for range 5 {
			all.Go(func() {
				for range 40 {
					use(l)
				}
			})
		}
	}
	if one(2) {
		time.Sleep(upTo(10 * lease))
		ctx, cancel := context.WithTimeout(t.Context(), upTo(2*lease))
		defer cancel()
		err := lockers[0].Close(ctx)
		if n := core.Turns(lockers[0]); n != 0 && err == nil {
			t.Errorf("closed before %d turns were over", n)
		}
	}
	all.Wait()
	s.Intercept(nil)
	time.Sleep(8 * lease) // what was late is done, and cleaned up after
	for i, l := range lockers {
		if n := core.Entries(l); n != 0 {
			t.Errorf("%d entries are left", n)
		}
		if n := core.Turns(l); n != 0 {
			t.Errorf("%d turns are counted", n)
		}
		if n := core.Orphans(l); n != 0 && i > 0 { // a closed one leaves them to their TTL
			t.Errorf("%d owners are still orphans", n)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range s.watchers {
		t.Errorf("%s is still watched", key)
	}
}
