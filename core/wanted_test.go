package core_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/observe"
)

// hinting is a store in memory as one process sees it. A test can hold up and forge its hints.
type hinting struct {
	*memstore.Store
	deaf    bool // hints are lost
	revoked atomic.Bool
	hear    func(driver.Call)
	begun   atomic.Int32
	ended   atomic.Int32
}

func (s *hinting) Calls(id string, hear func(driver.Call)) (stop func()) {
	s.begun.Add(1)
	s.hear = hear
	end := s.Store.Calls(id, func(c driver.Call) {
		if !s.deaf || c.What != driver.Wanted {
			hear(c)
		}
	})
	return func() { s.ended.Add(1); end() }
}

// hint calls the process about an owner; without one the call says that others may be lost.
func (s *hinting) hint(key, owner string) {
	if owner == "" {
		s.hear(driver.Call{Key: key, Reached: true})
	} else {
		s.hear(driver.Call{What: driver.Wanted, Key: key, Owner: owner})
	}
}

func (s *hinting) Renew(ctx context.Context, batch []driver.Renewal, done func(int, bool, error)) {
	s.Store.Renew(ctx, batch, func(i int, contended bool, err error) {
		if s.revoked.Load() {
			contended, err = false, driver.ErrRevoked
		}
		done(i, contended, err)
	})
}

// waits has a caller wait for a lock in the background until ctx ends, and returns when it does.
func waits(ctx context.Context, t *testing.T, locker *core.Locker, opts ...core.Option) {
	t.Helper()
	go func() {
		if lease, err := locker.Lock(ctx, "k", opts...); err == nil {
			_ = lease.Release(context.Background())
		}
	}()
	synctest.Wait()
}

// told fails the test unless the channel of a lease closes after just that time.
func told(t *testing.T, lease *core.Lease, after time.Duration) {
	t.Helper()
	begin := time.Now()
	select {
	case <-lease.Wanted():
		if took := time.Since(begin); took != after {
			t.Errorf("told after %v; want %v", took, after)
		}
	case <-time.After(time.Hour):
		t.Error("not told")
	}
	if err := lease.Err(); err != nil {
		t.Errorf("the lease: %v", err)
	}
}

// notTold fails the test if the channel of a lease closes within a lease.
func notTold(t *testing.T, lease *core.Lease) {
	t.Helper()
	select {
	case <-lease.Wanted():
		t.Error("told that others wait")
	case <-time.After(30 * time.Second):
	}
}

func TestAnAttentiveHolderIsToldAtOnceThatAnotherProcessWaits(t *testing.T) {
	readers, permit := core.Shared(), core.Permits(1)
	for name, c := range map[string]struct{ holder, waiter []core.Option }{
		"exclusive":        {},
		"fixed lease":      {holder: []core.Option{core.TTL(30 * time.Second)}},
		"permit":           {[]core.Option{permit}, []core.Option{permit}},
		"shared":           {holder: []core.Option{readers}},
		"shared and fixed": {holder: []core.Option{readers, core.TTL(30 * time.Second)}},
		"reader":           {waiter: []core.Option{readers}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				a, b := newLocker(t, store), newLocker(t, store)
				lease := held(t, a, t.Context(), "k", append(c.holder, core.Attentive())...)
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				time.Sleep(time.Second)
				waits(ctx, t, b, c.waiter...)
				told(t, lease, 0)
				_ = lease.Release(t.Context())
			})
		})
	}
}

// Where the store cannot tell it, or a hint is lost, or the caller does not say that it listens,
// the next renewal tells it.
func TestARenewalShowsAHolderThatAnotherProcessWaits(t *testing.T) {
	for name, c := range map[string]struct {
		store func(s *memstore.Store) core.Store
		opts  []core.Option
	}{
		"not attentive":    {func(s *memstore.Store) core.Store { return s }, nil},
		"a lost hint":      {func(s *memstore.Store) core.Store { return &hinting{Store: s, deaf: true} }, []core.Option{core.Attentive()}},
		"no such store":    {func(s *memstore.Store) core.Store { return struct{ driver.Store }{s} }, []core.Option{core.Attentive()}},
		"asked beforehand": {func(s *memstore.Store) core.Store { return s }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				a, b := newLocker(t, c.store(store)), newLocker(t, store)
				lease := held(t, a, t.Context(), "k", c.opts...)
				if name == "asked beforehand" {
					lease.Wanted()
				}
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				time.Sleep(time.Second)
				waits(ctx, t, b)
				told(t, lease, 9*time.Second)
				_ = lease.Release(t.Context())
			})
		})
	}
}

func TestAHolderIsToldAtOnceThatACallerOfThisProcessWaits(t *testing.T) {
	for name, c := range map[string]struct{ holder, waiter []core.Option }{
		"exclusive": {},
		"permit":    {[]core.Option{core.Permits(1)}, []core.Option{core.Permits(1)}},
		"shared":    {holder: []core.Option{core.Shared()}},
	} {
		for _, early := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a := newLocker(t, memstore.New())
					lease := held(t, a, t.Context(), "k", c.holder...)
					if early {
						lease.Wanted()
					}
					ctx, leave := context.WithCancel(t.Context())
					defer leave()
					waits(ctx, t, a, c.waiter...)
					told(t, lease, 0)
					_ = lease.Release(t.Context())
				})
			})
		}
	}
}

func TestAHolderIsNotToldWhereNoCallerWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		a, b := newLocker(t, store), newLocker(t, store)
		for _, opts := range [][]core.Option{{core.Attentive()}, {core.Permits(2), core.Attentive()}, {core.Shared(), core.Attentive()}} {
			lease := held(t, a, t.Context(), "k", opts...)
			if len(opts) > 1 {
				other := held(t, a, t.Context(), "k", opts...) // there is room for it
				defer other.Release(t.Context())
			}
			lease.Wanted()
			for _, l := range []*core.Locker{a, b} {
				if _, err := l.TryLock(t.Context(), "k"); !errors.Is(err, core.ErrHeld) {
					t.Errorf("TryLock: %v", err)
				}
			}
			notTold(t, lease)
			_ = lease.Release(t.Context())
		}
	})
}

// The grant came with a list of others that wait.
func TestAHolderIsToldAtOnceThatOthersStoodBehindIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		a, b, c := newLocker(t, store), newLocker(t, store), newLocker(t, store)
		first := held(t, a, t.Context(), "k")
		got := make(chan *core.Lease)
		go func() { got <- held(t, b, t.Context(), "k") }()
		synctest.Wait()
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		waits(ctx, t, c)
		_ = first.Release(t.Context())
		lease := <-got
		told(t, lease, 0)
		_ = lease.Release(t.Context())
	})
}

// Another process is refused while the reply to the grant is on its way: the hint comes first.
func TestAHintThatIsFasterThanTheGrantIsNotLost(t *testing.T) {
	for name, opts := range map[string][]core.Option{"exclusive": nil, "permit": {core.Permits(1)}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				store.Intercept(func(r memstore.Request) memstore.Fault {
					return memstore.Fault{After: map[memstore.Op]time.Duration{memstore.Acquire: time.Second}[r.Op]}
				})
				a, b := newLocker(t, store), newLocker(t, store)
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				time.AfterFunc(time.Second/2, func() { waits(ctx, t, b, opts...) })
				lease := held(t, a, t.Context(), "k", append(opts, core.Attentive())...)
				told(t, lease, 0)
				_ = lease.Release(t.Context())
			})
		})
	}
}

// The result of a renewal that was carried out before is older than the hint.
func TestAHintThatComesWhileARenewalIsOnItsWayIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		a, b := newLocker(t, store), newLocker(t, store)
		lease := held(t, a, t.Context(), "k", core.Attentive())
		store.Intercept(func(r memstore.Request) memstore.Fault {
			return memstore.Fault{After: map[memstore.Op]time.Duration{memstore.Renew: time.Second}[r.Op]}
		})
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		time.Sleep(10*time.Second + time.Second/2) // half a second after a renewal was carried out
		waits(ctx, t, b)
		told(t, lease, 3*time.Second/2)
		_ = lease.Release(t.Context())
	})
}

// An owner's name that was refused is used again, for a caller that is attentive; and a lock is
// not handed on to such a caller under the name of an owner that is not attentive.
func TestAnAttentiveCallerAfterOneThatIsNotIsToldAtOnce(t *testing.T) {
	for name, free := range map[string]bool{"after a refusal": false, "by a hand-off": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				a, b := newLocker(t, store), newLocker(t, store)
				holder := b
				if free {
					holder = a
				}
				first := held(t, holder, t.Context(), "k")
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				if !free {
					short, end := context.WithTimeout(ctx, time.Second)
					defer end()
					waits(short, t, a) // its name stays in the list
				}
				got := make(chan *core.Lease)
				go func() { got <- held(t, a, t.Context(), "k", core.Attentive()) }()
				time.Sleep(2 * time.Second)
				_ = first.Release(t.Context())
				lease := <-got
				if owner, _, _ := store.Holder("k"); !strings.HasSuffix(owner, "!") {
					t.Errorf("the owner is called %q", owner)
				}
				if n := store.Requests(memstore.Acquire); !free && n != 4 { // one more when the calls begin
					t.Errorf("%d requests: a grant under a name without the mark is given back", n)
				}
				waits(ctx, t, b)
				told(t, lease, 0)
				_ = lease.Release(t.Context())
			})
		})
	}
}

// A hint may be wrong, or forged: only answers of the store count.
func TestAHintEndsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &hinting{Store: memstore.New()}
		a := newLocker(t, store)
		lost := 0
		lease := held(t, a, t.Context(), "k", core.Attentive(), core.OnLost(func(core.Loss) { lost++ }))
		lease.Wanted()
		fixed, err := a.Lock(t.Context(), "fixed", core.Attentive(), core.TTL(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		owner, _, _ := store.Holder("k")
		for _, h := range [][2]string{
			{"", ""},
			{"k", ""},
			{"k", owner},
			{"k", owner},
			{"", owner},
			{"other", owner},
			{"k", strings.TrimSuffix(owner, "!")},
			{"k", "x:1!"},
			{"k", driver.Attentive(owner)},
			{"fixed", owner},
			{"\x00", "\xff"},
		} {
			store.hint(h[0], h[1])
			synctest.Wait()
		}
		if n := store.Requests(memstore.Renew); n != 6 {
			t.Errorf("the locker asked %d times; want 6: once about each owner that a hint is about, or may be about", n)
		}
		select {
		case <-lease.Wanted():
			t.Error("a hint says that others wait")
		default:
		}
		if lease.Context().Err() != nil || fixed.Context().Err() != nil || lease.Err() != nil || fixed.Err() != nil || lost > 0 {
			t.Errorf("a hint has ended a lease: %v, %v, %d losses", lease.Err(), fixed.Err(), lost)
		}
		if _, ends, _ := store.Holder("fixed"); ends == 0 {
			t.Error("the fixed lease is gone")
		}
		_, _ = lease.Release(t.Context()), fixed.Release(t.Context())
		store.hint("k", owner) // late
		store.hint("", "")
		if store.begun.Load() != 1 {
			t.Errorf("the store was asked %d times to tell", store.begun.Load())
		}
		if err := a.Close(t.Context()); err != nil || store.ended.Load() != 1 {
			t.Errorf("Close: %v, ended %d times", err, store.ended.Load())
		}
		store.hint("k", owner)
		store.hint("", "")
	})
}

// A fixed lease that is looked at is not renewed.
func TestALookDoesNotRenewAFixedLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &hinting{Store: memstore.New()}
		a, b := newLocker(t, store), newLocker(t, store.Store)
		begin := time.Now()
		lease := held(t, a, t.Context(), "k", core.Attentive(), core.TTL(time.Minute))
		time.Sleep(30 * time.Second)
		store.hint("", "")
		synctest.Wait()
		if got := lease.Deadline().Sub(begin); got > time.Minute {
			t.Errorf("the lease ends after %v", got)
		}
		if renewals := a.Held()[0].Renewals; renewals != 0 {
			t.Errorf("%d renewals", renewals)
		}
		next := held(t, b, t.Context(), "k")
		if got := time.Since(begin); got < time.Minute || got > time.Minute+time.Second {
			t.Errorf("the next holder has the lock after %v", got)
		}
		_ = next.Release(t.Context())
	})
}

// A subscription may be confirmed after the grant. Earlier messages are lost then, so the
// locker asks.
func TestALockerLooksWhereHintsMayBeLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &hinting{Store: memstore.New(), deaf: true}
		a, b := newLocker(t, store), newLocker(t, store.Store)
		lease := held(t, a, t.Context(), "k", core.Attentive())
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		waits(ctx, t, b)
		time.AfterFunc(time.Second, func() { store.hint("", "") })
		told(t, lease, time.Second)
		_ = lease.Release(t.Context())
	})
}

func TestAnOperatorsReleaseIsReportedAtOnce(t *testing.T) {
	for name, opts := range map[string][]core.Option{
		"renewed": nil, "fixed": {core.TTL(time.Hour)}, "permit": {core.Permits(2)}, "shared": {core.Shared()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &hinting{Store: memstore.New()}
				a := newLocker(t, store)
				lost := make(chan core.Loss, 1)
				lease := held(t, a, t.Context(), "k", append(opts, core.Attentive(), core.OnLost(func(l core.Loss) { lost <- l }))...)
				owner, _, _ := store.Holder("k")
				store.revoked.Store(true)
				begin := time.Now()
				store.hint("k", owner)
				<-lease.Context().Done()
				if got := <-lost; got.Reason != observe.LossRevoked || time.Since(begin) != 0 ||
					!errors.Is(context.Cause(lease.Context()), core.ErrLost) {
					t.Errorf("lost after %v: %v, %v", time.Since(begin), got.Reason, context.Cause(lease.Context()))
				}
			})
		})
	}
}

func TestSeveralLocksAreWantedWhenOneOfThemIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		a, b := newLocker(t, store), newLocker(t, store)
		lease, err := a.LockAll(t.Context(), []string{"j", "k", "l"}, core.Attentive())
		if err != nil {
			t.Fatal(err)
		}
		inner, err := a.Lock(lease.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if inner.Wanted() != lease.Wanted() || core.LeaseFromContext(inner.Context()).Wanted() != lease.Wanted() {
			t.Error("a lock that was re-entered has a channel of its own")
		}
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		for _, l := range []*core.Locker{a, b} { // the second time it is closed
			waits(ctx, t, l)
			told(t, lease, 0)
		}
		_, _ = inner.Release(t.Context()), lease.Release(t.Context())
	})
}

func TestNoNoticeComesAfterTheEndOfALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		a, b := newLocker(t, store), newLocker(t, store)
		released := held(t, a, t.Context(), "k", core.Attentive())
		released.Wanted()
		_ = released.Release(t.Context())
		lease := held(t, a, t.Context(), "k", core.Attentive())
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		waits(ctx, t, b)
		select {
		case <-released.Wanted():
			t.Error("a lease that was released is told")
		case <-(*core.Lease)(nil).Wanted():
			t.Error("a nil lease is told")
		case <-lease.Wanted():
		}
		_ = lease.Release(t.Context())
	})
}

// unreliable is a store with hints that are lost, late, repeated, or about another
// owner.
type unreliable struct{ distant }

func (s unreliable) Calls(id string, hear func(driver.Call)) (stop func()) {
	return s.distant.Calls(id, func(c driver.Call) {
		if c.What != driver.Wanted {
			hear(c)
			return
		}
		for range rand.IntN(3) {
			later := time.Duration(rand.Int64N(int64(50 * time.Millisecond)))
			time.AfterFunc(later, func() { hear(c) })
			time.AfterFunc(later, func() { hear(driver.Call{What: driver.Wanted, Owner: driver.Attentive(id + ":1")}) })
		}
	})
}

// Holders give way on a notification, under hints of every kind: there is one holder at a time,
// no hold is lost, and no caller waits for ever.
func TestUnreliableHintsLeaveOneHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const sections = 250
		store := memstore.New()
		var inside, toldEarly atomic.Int32
		var all sync.WaitGroup
		for _, trip := range []time.Duration{200 * time.Microsecond, 2 * time.Millisecond, 10 * time.Millisecond} {
			l := newLocker(t, unreliable{distant{store, trip, nil}})
			for range 3 {
				all.Go(func() {
					for range sections {
						lease, err := l.Lock(t.Context(), "k", core.Attentive(), core.Watchdog(3*time.Second), core.OnLost(func(l core.Loss) {
							t.Errorf("lost: %+v", l)
						}))
						if err != nil {
							t.Error(err)
							return
						}
						if inside.Add(1) != 1 {
							t.Error("two are inside")
						}
						select {
						case <-lease.Wanted():
							toldEarly.Add(1)
							time.Sleep(time.Millisecond)
						case <-time.After(20 * time.Millisecond):
						}
						inside.Add(-1)
						_ = lease.Release(t.Context())
					}
				})
			}
		}
		all.Wait()
		if toldEarly.Load() < 9*sections/2 {
			t.Errorf("of %d holders %d gave way", 9*sections, toldEarly.Load())
		}
	})
}
