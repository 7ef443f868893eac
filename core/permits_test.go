package core_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
)

// trip is the round trip of the store of onSlowLink.
const trip = 30 * time.Millisecond

// onSlowLink runs a test on a store that a round trip of 30 ms is away.
func onSlowLink(t *testing.T, test func(t *testing.T, store *memstore.Store, l *core.Locker)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Delay(trip / 2) })
		l := newLocker(t, store)
		defer closeSoon(t, l)
		test(t, store, l)
	})
}

// A caller's own process must not be what keeps it from a free permit.
func TestTriesForPermitsOfOneProcessAreOnTheirWayTogether(t *testing.T) {
	for name, c := range map[string]struct {
		elsewhere, callers, atMost int // permits that another process has, and so on
		granted, trips, most       int // within so many round trips, with so many requests at most
	}{
		"as many as there are":       {callers: 40, atMost: 40, granted: 40, trips: 1, most: 40},
		"more than there are":        {callers: 60, atMost: 40, granted: 40, trips: 2, most: 41},
		"more than go at once":       {callers: 100, atMost: 100, granted: 100, trips: 2, most: 100},
		"some are another process's": {elsewhere: 30, callers: 40, atMost: 40, granted: 10, trips: 1, most: 40},
		"all are another process's":  {elsewhere: 3, callers: 40, atMost: 3, granted: 0, trips: 1, most: 3},
		"one caller":                 {callers: 1, atMost: 40, granted: 1, trips: 1, most: 1},
	} {
		t.Run(name, func(t *testing.T) {
			onSlowLink(t, func(t *testing.T, store *memstore.Store, l *core.Locker) {
				if c.elsewhere > 0 {
					other := newLocker(t, store)
					defer closeSoon(t, other)
					got := outcomes(c.elsewhere, func() error { _, err := other.TryPermit(t.Context(), "k", c.atMost); return err })
					wantOutcomes(t, got, map[error]int{nil: c.elsewhere})
				}
				before, begin := store.Requests(memstore.Acquire), time.Now()
				got := outcomes(c.callers, func() error { _, err := l.TryPermit(t.Context(), "k", c.atMost); return err })
				took, requests := time.Since(begin), store.Requests(memstore.Acquire)-before
				if got[nil] != c.granted || got[nil]+got[core.ErrFull] != c.callers {
					t.Errorf("the outcomes are %v, want %d granted", got, c.granted)
				}
				if took > time.Duration(c.trips)*trip || requests > c.most {
					t.Errorf("it took %v and %d requests, want %d round trips and %d requests", took, requests, c.trips, c.most)
				}
			})
		})
	}
}

// Callers that wait get free permits as fast, and permits that another process gives back
// together within a few round trips: in each trip twice as many callers ask.
func TestWaitersGetManyPermitsWithinAFewRoundTrips(t *testing.T) {
	for name, elsewhere := range map[string]bool{"free": false, "given back by another process": true} {
		t.Run(name, func(t *testing.T) {
			onSlowLink(t, func(t *testing.T, store *memstore.Store, l *core.Locker) {
				other := newLocker(t, store)
				var theirs []*core.Lease
				trips, most := time.Duration(1), 40
				if elsewhere {
					trips, most = 9, 90
					for range 40 {
						lease, err := other.Permit(t.Context(), "k", 40)
						wantErr(t, err, nil)
						theirs = append(theirs, lease)
					}
				}
				before := store.Requests(memstore.Acquire)
				got := make(chan error, 40)
				for range cap(got) {
					go func() { _, err := l.Permit(t.Context(), "k", 40); got <- err }()
				}
				if elsewhere {
					time.Sleep(5 * time.Second)
				}
				begin := time.Now()
				for _, lease := range theirs {
					go func() { _ = lease.Release(t.Context()) }()
				}
				for range cap(got) {
					wantErr(t, <-got, nil)
				}
				took, requests := time.Since(begin), store.Requests(memstore.Acquire)-before
				if took > trips*trip || requests > most {
					t.Errorf("it took %v and %d requests, want %d round trips and %d requests", took, requests, trips, most)
				}
			})
		})
	}
}

// Requests that are on their way together have separate outcomes and owners: a permit of
// a request without a reply is released again.
func TestPermitsWhoseRepliesAreLostAreFreeAgain(t *testing.T) {
	onSlowLink(t, func(t *testing.T, store *memstore.Store, l *core.Locker) {
		var mu sync.Mutex
		n := 0
		store.Intercept(func(r memstore.Request) memstore.Fault {
			mu.Lock()
			defer mu.Unlock()
			fault := memstore.Delay(trip / 2)
			if r.Op == memstore.Acquire {
				if n++; n%2 == 0 {
					fault.Err, fault.Executed = memstore.LostReply.Err, true
				}
			}
			return fault
		})
		got := outcomes(40, func() error { _, err := l.TryPermit(t.Context(), "k", 40); return err })
		wantOutcomes(t, got, map[error]int{nil: 20, core.ErrUnavailable: 20})
		time.Sleep(time.Second) // the releases are answered
		store.Intercept(nil)
		other := newLocker(t, store)
		defer closeSoon(t, other)
		got = outcomes(40, func() error { _, err := other.TryPermit(t.Context(), "k", 40); return err })
		wantOutcomes(t, got, map[error]int{nil: 20, core.ErrFull: 20})
	})
}

// The grants of callers that leave while their requests are on their way go to callers
// that come then, and back to the store if there are none.
func TestPermitsOfCallersThatLeaveAreOthers(t *testing.T) {
	onSlowLink(t, func(t *testing.T, store *memstore.Store, l *core.Locker) {
		ctx, cancel := context.WithCancel(t.Context())
		left, got := make(chan error, 10), make(chan error, 5)
		for range cap(left) {
			go func() { _, err := l.Permit(ctx, "k", 20); left <- err }()
		}
		synctest.Wait() // all ten are on their way
		begin := time.Now()
		cancel()
		for range cap(left) {
			wantErr(t, <-left, context.Canceled)
		}
		for range cap(got) {
			go func() { _, err := l.Permit(t.Context(), "k", 20); got <- err }()
		}
		for range cap(got) {
			wantErr(t, <-got, nil)
		}
		if took := time.Since(begin); took > trip {
			t.Errorf("the callers behind waited for %v", took)
		}
		if n := store.Requests(memstore.Acquire); n != 10 {
			t.Errorf("%d requests for ten permits", n)
		}
		time.Sleep(time.Second)
		other := newLocker(t, store)
		defer closeSoon(t, other)
		free := outcomes(20, func() error { _, err := other.TryPermit(t.Context(), "k", 20); return err })
		wantOutcomes(t, free, map[error]int{nil: 15, core.ErrFull: 5})
	})
}

// Many callers that wait for few permits cost no more requests than few callers.
func TestManyWaitersAskForFewPermitsOneByOne(t *testing.T) {
	onSlowLink(t, func(t *testing.T, store *memstore.Store, l *core.Locker) {
		other := newLocker(t, store)
		defer closeSoon(t, other)
		var theirs []*core.Lease
		for range 40 {
			lease, err := other.Permit(t.Context(), "k", 40)
			wantErr(t, err, nil)
			theirs = append(theirs, lease)
		}
		got := make(chan error, 40)
		for range cap(got) {
			go func() { _, err := l.Permit(t.Context(), "k", 40); got <- err }()
		}
		time.Sleep(300 * time.Millisecond)
		for i, lease := range theirs {
			before := store.Requests(memstore.Acquire)
			wantErr(t, lease.Release(t.Context()), nil)
			wantErr(t, <-got, nil)
			time.Sleep(200 * time.Millisecond) // what follows the grant is answered
			if n := store.Requests(memstore.Acquire) - before; n > 2 {
				t.Fatalf("permit %d cost %d requests", i, n)
			}
		}
	})
}

// A late answer keeps no later caller from asking.
func TestASlowAnswerDelaysNoCallerBehindIt(t *testing.T) {
	onSlowLink(t, func(t *testing.T, store *memstore.Store, l *core.Locker) {
		var n atomic.Int32
		store.Intercept(func(memstore.Request) memstore.Fault {
			if n.Add(1) == 1 {
				return memstore.Fault{After: time.Second}
			}
			return memstore.Delay(trip / 2)
		})
		got := make(chan error, 200)
		for range cap(got) {
			go func() { _, err := l.Permit(t.Context(), "k", 200); got <- err }()
		}
		begin := time.Now()
		for i := range cap(got) {
			wantErr(t, <-got, nil)
			if took := time.Since(begin); i < cap(got)-1 && took > 4*trip {
				t.Fatalf("permit %d took %v", i, took)
			}
		}
	})
}

// Answers can come in another order than the requests were executed.
func TestAnswersOfPermitsInAnyOrder(t *testing.T) {
	for name, c := range map[string]struct {
		slow int // this request's answer takes longer
		most int // requests for the rest
	}{
		"the refusal comes after a later grant": {slow: 1, most: 4},
		"the grant comes last":                  {slow: 2, most: 4},
	} {
		t.Run(name, func(t *testing.T) {
			onSlowLink(t, func(t *testing.T, store *memstore.Store, l *core.Locker) {
				other := newLocker(t, store)
				defer closeSoon(t, other)
				var theirs []*core.Lease
				for range 20 {
					lease, err := other.Permit(t.Context(), "k", 20)
					wantErr(t, err, nil)
					theirs = append(theirs, lease)
				}
				// The first request is refused, then a permit is given back, and the second
				// is granted.
				var mu sync.Mutex
				n := 0
				store.Intercept(func(r memstore.Request) memstore.Fault {
					mu.Lock()
					defer mu.Unlock()
					fault := memstore.Fault{After: 10 * time.Millisecond}
					if r.Op != memstore.Acquire {
						return memstore.Fault{}
					}
					if n++; n == c.slow {
						fault.After *= 3
					}
					if n > 1 {
						fault.Before = 5 * time.Millisecond
					}
					if n > 2 {
						fault.Before++
					}
					return fault
				})
				got := make(chan error, 20)
				for range cap(got) {
					go func() { _, err := l.Permit(t.Context(), "k", 20); got <- err }()
				}
				time.Sleep(time.Millisecond)
				wantErr(t, theirs[0].Release(t.Context()), nil)
				wantErr(t, <-got, nil)
				time.Sleep(500 * time.Millisecond)
				if n := store.Requests(memstore.Acquire) - 20; n > 20+c.most {
					t.Errorf("%d requests of 20 callers for one permit", n)
				}
				begin := time.Now()
				wantErr(t, theirs[1].Release(t.Context()), nil)
				wantErr(t, <-got, nil)
				if took := time.Since(begin); took > 100*time.Millisecond {
					t.Errorf("the next permit took %v", took)
				}
			})
		})
	}
}

// Tries that find places that their own process is giving back ask again together.
func TestTriesForPlacesOnTheirWayBackAskAgainTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l := newLocker(t, store)
		defer closeSoon(t, l)
		var leases []*core.Lease
		for range 40 {
			lease, err := l.Permit(t.Context(), "k", 40)
			wantErr(t, err, nil)
			leases = append(leases, lease)
		}
		store.Intercept(func(r memstore.Request) memstore.Fault {
			if r.Op == memstore.Release {
				return memstore.Fault{Before: 2 * trip}
			}
			return memstore.Delay(trip / 2)
		})
		for _, lease := range leases[:17] {
			go func() { _ = lease.Release(t.Context()) }()
		}
		synctest.Wait()
		begin := time.Now()
		got := outcomes(20, func() error { _, err := l.TryPermit(t.Context(), "k", 40); return err })
		wantOutcomes(t, got, map[error]int{nil: 17, core.ErrFull: 3})
		if took := time.Since(begin); took > 4*trip {
			t.Errorf("it took %v", took)
		}
	})
}

// A process asks for several permits at once, and gives an exclusive caller its turn all
// the same. The queue orders callers of the same process, the store's list callers of
// others.
func TestManyPermitsOvertakeNoExclusiveCaller(t *testing.T) {
	for name, own := range map[string]bool{"of the process": true, "of another process": false} {
		t.Run(name, func(t *testing.T) {
			onSlowLink(t, func(t *testing.T, store *memstore.Store, l *core.Locker) {
				const before, behind = 5, 20
				order := make(chan string, before+behind+1)
				permit := func(l *core.Locker, name string) {
					lease, err := l.Permit(t.Context(), "k", 10)
					if err != nil {
						order <- err.Error()
						return
					}
					order <- name
					time.Sleep(time.Second)
					_ = lease.Release(t.Context())
				}
				holders, alone := l, l
				if !own {
					holders, alone = newLocker(t, store), newLocker(t, store)
				}
				for range before {
					go permit(holders, "before")
				}
				synctest.Wait() // they are on their way
				if !own {
					time.Sleep(2 * trip) // they have their permits
				}
				go func() {
					lease, err := alone.Lock(t.Context(), "k")
					if err == nil {
						err = lease.Release(t.Context())
					}
					wantErr(t, err, nil)
					order <- "alone"
				}()
				time.Sleep(2 * trip) // it waits
				for range behind {
					go permit(l, "behind")
				}
				for i := range cap(order) {
					want := "behind"
					if i < before {
						want = "before"
					} else if i == before {
						want = "alone"
					}
					if got := <-order; got != want {
						t.Fatalf("grant %d is %s, want %s", i, got, want)
					}
				}
				time.Sleep(3 * time.Second)
			})
		})
	}
}

// After an error of the store that meets all requests at once, the process does not wait
// for longer than after one.
func TestRequestsThatFailTogetherMakeOnePause(t *testing.T) {
	onSlowLink(t, func(t *testing.T, store *memstore.Store, l *core.Locker) {
		store.Intercept(func(memstore.Request) memstore.Fault {
			fault := memstore.Delay(trip / 2)
			fault.Err = driver.ErrNotReady
			return fault
		})
		got := make(chan error, 40)
		for range cap(got) {
			go func() { _, err := l.TryPermit(t.Context(), "k", 40); got <- err }()
		}
		time.Sleep(trip * 3 / 2)
		store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Delay(trip / 2) })
		begin := time.Now()
		for range cap(got) {
			if err := <-got; err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(begin); took > 4*trip {
			t.Errorf("it took %v", took)
		}
	})
}
