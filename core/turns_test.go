package core_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
)

// distant is a store as a process sees it that is some way from it: each request takes half of
// trip, and so does each reply and each signal.
type distant struct {
	*memstore.Store
	trip time.Duration
	late func() time.Duration // how much later signals and offers come; may be nil
}

// call calls the process when a message has come.
func (d distant) call(f func()) {
	way := d.trip / 2
	if d.late != nil {
		way += d.late()
	}
	time.AfterFunc(way, f)
}

func (d distant) RoundTrip() time.Duration { return d.trip }

func (d distant) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	sent := time.Now()
	time.Sleep(d.trip / 2)
	rep, err := d.Store.Acquire(ctx, req)
	time.Sleep(d.trip / 2)
	rep.Sent = sent
	return rep, err
}

func (d distant) Release(ctx context.Context, req driver.ReleaseRequest) (driver.Waiting, error) {
	time.Sleep(d.trip / 2)
	defer time.Sleep(d.trip / 2)
	return d.Store.Release(ctx, req)
}

func (d distant) Renew(ctx context.Context, batch []driver.Renewal, done func(int, bool, error)) {
	time.Sleep(d.trip / 2)
	d.Store.Renew(ctx, batch, func(i int, contended bool, err error) {
		time.Sleep(d.trip / 2) // the batches of this test have one lease
		done(i, contended, err)
	})
}

func (d distant) Calls(id string, hear func(driver.Call)) (stop func()) {
	return d.Store.Calls(id, func(c driver.Call) {
		if c.What == driver.Unsure {
			hear(c)
		} else {
			d.call(func() { hear(c) })
		}
	})
}

// Decline implements [driver.Turns].
func (d distant) Decline(ctx context.Context, key, waiter string) error {
	time.Sleep(d.trip / 2)
	defer time.Sleep(d.trip / 2)
	return d.Store.Decline(ctx, key, waiter)
}

// process is a process in a world of processes at several distances.
type process struct {
	trip    time.Duration
	late    func() time.Duration
	callers int
	grants  atomic.Int64
	longest atomic.Int64 // wait, in ns
}

// compete has processes take a lock again and again for some time, and hold it for 1 ms.
func compete(t *testing.T, lasts time.Duration, opts []core.Option, processes ...*process) {
	t.Helper()
	store := memstore.New()
	ctx, stop := context.WithTimeout(t.Context(), lasts)
	defer stop()
	var inside atomic.Int64
	var all sync.WaitGroup
	for _, p := range processes {
		locker, err := core.New(distant{store, p.trip, p.late})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = locker.Close(context.Background()) })
		for range p.callers {
			all.Go(func() {
				for ctx.Err() == nil {
					asked := time.Now()
					lease, err := locker.Lock(context.Background(), "k", opts...)
					if err != nil {
						t.Error(err)
						return
					}
					if inside.Add(1) != 1 {
						t.Error("two are inside")
					}
					if wait := int64(time.Since(asked)); wait > p.longest.Load() {
						p.longest.Store(wait) // near enough, if two are here
					}
					time.Sleep(time.Millisecond)
					p.grants.Add(1)
					inside.Add(-1)
					_ = lease.Release(context.Background())
				}
			})
		}
	}
	all.Wait()
}

// A process far from the store gets its turns among processes that are near, and these do
// not pay for more than the way to the far process and back.
func TestTurnsDoNotDependOnTheDistance(t *testing.T) {
	const near = 200 * time.Microsecond
	for name, opts := range map[string][]core.Option{"exclusive": nil, "permit": {core.Permits(1)}} {
		for _, trip := range []time.Duration{2 * time.Millisecond, 10 * time.Millisecond, 60 * time.Millisecond} {
			t.Run(name+" "+trip.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					const lasts = 10 * time.Second
					alone := &process{trip: near, callers: 8}
					compete(t, lasts, opts, alone)
					beside, far := &process{trip: near, callers: 8}, &process{trip: trip, callers: 1}
					compete(t, lasts, opts, beside, far)
					longest := time.Duration(far.longest.Load())
					t.Logf("near %d (alone %d), far %d, which waited for %v at the longest", beside.grants.Load(), alone.grants.Load(), far.grants.Load(), longest)
					if most := 10*trip + 100*time.Millisecond; longest > most || far.grants.Load() == 0 {
						t.Errorf("the far process waited for %v, %d grants; want at most %v", longest, far.grants.Load(), most)
					}
					// A grant of a permit has tokens for 16 callers, which bounds the turn.
					share := int64(2)
					if opts != nil && trip > 50*time.Millisecond {
						share = 3
					}
					if share*beside.grants.Load() < alone.grants.Load() {
						t.Errorf("near %d, alone %d", beside.grants.Load(), alone.grants.Load())
					}
				})
			})
		}
	}
}

// A process that is near, and hears late each time, does not take more than a fair part of the time
// from the others.
func TestAProcessThatHearsLateLeavesTheOthersTheirTime(t *testing.T) {
	for name, late := range map[string]func() time.Duration{
		"on a slow subscription": func() time.Duration { return 300 * time.Millisecond },
		"stopped for 90 ms of 100": func() time.Duration {
			return max(0, 90*time.Millisecond-time.Duration(time.Now().UnixNano())%(100*time.Millisecond))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const near, lasts = 200 * time.Microsecond, 20 * time.Second // it takes some turns to measure the others'
				alone := &process{trip: near, callers: 8}
				compete(t, lasts, nil, alone)
				beside, slow := &process{trip: near, callers: 8}, &process{trip: near, callers: 1, late: late}
				compete(t, lasts, nil, beside, slow)
				t.Logf("near %d (alone %d), late %d", beside.grants.Load(), alone.grants.Load(), slow.grants.Load())
				if 5*beside.grants.Load() < 2*alone.grants.Load() || slow.grants.Load() < 10 {
					t.Errorf("near %d, late %d; want two fifths at least of %d, and 10", beside.grants.Load(), slow.grants.Load(), alone.grants.Load())
				}
			})
		})
	}
}

// Of processes at four distances none gets less than half of the middle ones' share.
func TestProcessesAtAllDistancesGetTheirShare(t *testing.T) {
	for name, opts := range map[string][]core.Option{"exclusive": nil, "permit": {core.Permits(1)}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var all []*process
				for _, trip := range []time.Duration{100 * time.Microsecond, 2 * time.Millisecond, 10 * time.Millisecond, 60 * time.Millisecond} {
					all = append(all, &process{trip: trip, callers: 8})
				}
				compete(t, 20*time.Second, opts, all...)
				var grants []int64
				for _, p := range all {
					t.Logf("%v away: %d grants, longest wait %v", p.trip, p.grants.Load(), time.Duration(p.longest.Load()))
					grants = append(grants, p.grants.Load())
				}
				slices.Sort(grants)
				if median := (grants[1] + grants[2]) / 2; 2*grants[0] < median {
					t.Errorf("%v grants: the least is below half of the median", grants)
				}
			})
		})
	}
}

// enters has a locker of another process, without a caller here, enter the list of a held lock.
func enters(t *testing.T, store core.Store, waiter driver.Waiter) {
	t.Helper()
	_, err := store.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: waiter.ID() + ":1", TTL: time.Minute, Waiter: waiter})
	wantErr(t, err, nil)
}

// Processes that died while they waited cost the others a second or two, however many they are. If they
// took offers the store notices that nobody listens, and passes them over at once.
func TestDeadProcessesDoNotAddUp(t *testing.T) {
	for name, c := range map[string]struct {
		offers bool
		most   time.Duration
	}{
		"which the store passes over":      {true, 100 * time.Millisecond},
		"of which the store knows nothing": {false, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				holder, live := newLocker(t, store), newLocker(t, store)
				lease := held(t, holder, t.Context(), "k")
				for i := range 10 {
					dead := driver.NewWaiter(fmt.Sprint("dead", i), driver.Exclusive, 100*time.Millisecond)
					if c.offers {
						dead = dead.TakingOffers()
					}
					enters(t, store, dead)
				}
				got := make(chan time.Time)
				go func() {
					l, err := live.Lock(t.Context(), "k")
					wantErr(t, err, nil)
					got <- time.Now()
					_ = l.Release(t.Context())
				}()
				synctest.Wait()
				begin := time.Now()
				release(t, lease)
				if took := (<-got).Sub(begin); took > c.most {
					t.Errorf("the live process has the lock after %v; want at most %v", took, c.most)
				}
			})
		})
	}
}

// A process that hangs listens, and does nothing: the first costs the time of its offer, and each of the
// next its patience. Then the release has called a process that lives, however many wait.
func TestProcessesThatHangCostTheirTurnsAlone(t *testing.T) {
	for _, waiting := range []int{1, 43, 251} {
		t.Run(fmt.Sprint(waiting, " others"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				lease := held(t, newLocker(t, store), t.Context(), "k")
				for i := range driver.KeptFor {
					id := fmt.Sprint("hangs", i)
					t.Cleanup(store.Calls(id, func(driver.Call) {}))
					enters(t, store, driver.NewWaiter(id, driver.Exclusive, 100*time.Millisecond).TakingOffers())
				}
				got := make(chan time.Time, waiting)
				for range waiting {
					live := newLocker(t, store)
					go func() {
						l, err := live.Lock(t.Context(), "k")
						wantErr(t, err, nil)
						got <- time.Now()
						_ = l.Release(t.Context())
					}()
					synctest.Wait()
				}
				began := time.Now()
				release(t, lease)
				if took := (<-got).Sub(began); took > 5*time.Second {
					t.Errorf("the first process that lives has the lock after %v; want at most 5s", took)
				}
				for range waiting - 1 {
					<-got
				}
			})
		})
	}
}

// After its only caller has left, a far process does not keep the others waiting.
func TestALockerWithoutCallersGivesItsTurnAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		open := func(trip time.Duration) *core.Locker {
			l, err := core.New(distant{store, trip, nil})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close(context.Background()) })
			return l
		}
		holder, far, next := open(0), open(60*time.Millisecond), open(time.Millisecond)
		warm, err := far.Lock(t.Context(), "another key") // so that it knows the way
		if err != nil {
			t.Fatal(err)
		}
		_ = warm.Release(t.Context())
		lease, err := holder.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		ctx, leave := context.WithCancel(t.Context())
		go func() { _, _ = far.Lock(ctx, "k") }()
		time.Sleep(100 * time.Millisecond) // it is in the list
		got := make(chan time.Time)
		go func() {
			l, err := next.Lock(t.Context(), "k")
			if err != nil {
				t.Error(err)
				return
			}
			got <- time.Now()
			_ = l.Release(t.Context())
		}()
		time.Sleep(100 * time.Millisecond)
		leave()
		time.Sleep(10 * time.Millisecond) // less than the way to the store
		released := time.Now()
		_ = lease.Release(t.Context())
		if took := (<-got).Sub(released); took > 70*time.Millisecond { // the way of an offer and back
			t.Errorf("the next process got the lock %v after the release", took)
		}
	})
}
