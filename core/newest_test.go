package core_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
)

// caller waits for the lock of k in the background.
type caller struct {
	*testing.T
	done  chan struct{}
	lease *core.Lease
	err   error
}

// comes starts a caller, and returns when the caller waits or has its result.
func comes(t *testing.T, ctx context.Context, l *core.Locker, opts ...core.Option) *caller { //nolint:revive // t first
	t.Helper()
	c := &caller{T: t, done: make(chan struct{})}
	go func() {
		c.lease, c.err = l.Lock(ctx, "k", opts...)
		close(c.done)
	}()
	synctest.Wait()
	return c
}

// waiting fails the test unless the caller waits.
func (c *caller) waiting() {
	c.Helper()
	synctest.Wait()
	select {
	case <-c.done:
		c.Fatalf("the caller does not wait: %v", c.err)
	default:
	}
}

// fails fails the test unless the caller has this error by now.
func (c *caller) fails(want error) {
	c.Helper()
	synctest.Wait()
	select {
	case <-c.done:
		wantErr(c.T, c.err, want)
	default:
		c.Fatalf("the caller waits; want %v", want)
	}
}

// holds fails the test unless the caller has the lock by now.
func (c *caller) holds() *core.Lease {
	c.Helper()
	synctest.Wait()
	select {
	case <-c.done:
		if c.err != nil {
			c.Fatal(c.err)
		}
	default:
		c.Fatal("the caller waits for a lock that is free")
	}
	return c.lease
}

// superseded fails the test unless the context of a lease has ended for a newer caller, and the
// lease is valid.
func superseded(t *testing.T, lease *core.Lease) {
	t.Helper()
	synctest.Wait()
	if cause := context.Cause(lease.Context()); cause != core.ErrSuperseded { //nolint:errorlint // never wrapped
		t.Errorf("the context of the holder: %v", cause)
	}
	if err := lease.Err(); err != nil {
		t.Errorf("the lease of a superseded holder: %v", err)
	}
}

// works fails the test if the context of a lease has ended.
func works(t *testing.T, lease *core.Lease) {
	t.Helper()
	synctest.Wait()
	if cause := context.Cause(lease.Context()); cause != nil {
		t.Errorf("the context of the holder has ended: %v", cause)
	}
}

// inFleets runs a test with callers of one process, and with callers of different ones.
func inFleets(t *testing.T, f func(t *testing.T, lockers []*core.Locker)) {
	t.Helper()
	for name, of := range map[string]func(t *testing.T) []*core.Locker{
		"one process": func(t *testing.T) []*core.Locker {
			l := newLocker(t, memstore.New())
			return []*core.Locker{l, l, l, l}
		},
		"a process for each caller": func(t *testing.T) []*core.Locker {
			s := memstore.New()
			return []*core.Locker{newLocker(t, s), newLocker(t, s), newLocker(t, s), newLocker(t, s)}
		},
		"the newest comes in the process of the holder": func(t *testing.T) []*core.Locker {
			s := memstore.New()
			a := newLocker(t, s)
			return []*core.Locker{a, newLocker(t, s), a, newLocker(t, s)}
		},
		"two processes": func(t *testing.T) []*core.Locker {
			s := memstore.New()
			a, b := newLocker(t, s), newLocker(t, s)
			return []*core.Locker{a, a, b, b}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { f(t, of(t)) })
		})
	}
}

func TestTheNewestCallerTakesThePlaceOfThoseBefore(t *testing.T) {
	inFleets(t, func(t *testing.T, l []*core.Locker) {
		first := held(t, l[0], t.Context(), "k", core.Newest())
		second := comes(t, t.Context(), l[1], core.Newest())
		second.waiting()
		superseded(t, first)
		third := comes(t, t.Context(), l[2], core.Newest())
		second.fails(core.ErrSuperseded)
		second.fails(core.ErrHeld)
		third.waiting()
		fourth := comes(t, t.Context(), l[3], core.Newest())
		third.fails(core.ErrSuperseded)
		fourth.waiting()
		time.Sleep(2 * time.Minute) // the holder does not stop yet: its lease is renewed
		fourth.waiting()
		superseded(t, first)
		if err := first.Check(t.Context()); err != nil {
			t.Error(err)
		}
		release(t, first)
		works(t, fourth.holds())
		release(t, fourth.lease)
	})
}

func TestOnlyCallersWithTheOptionAreSuperseded(t *testing.T) {
	inFleets(t, func(t *testing.T, l []*core.Locker) {
		first := held(t, l[0], t.Context(), "k")
		inTurn := comes(t, t.Context(), l[3])
		newest := comes(t, t.Context(), l[2], core.Newest())
		last := comes(t, t.Context(), l[3]) // not in the first one's process, which would hand the lock over
		works(t, first)
		for _, c := range []*caller{inTurn, newest, last} {
			c.waiting()
		}
		release(t, first)
		works(t, newest.holds()) // before the others
		inTurn.waiting()
		release(t, newest.lease)
		time.Sleep(5 * time.Second) // turns between processes
		release(t, inTurn.holds())
		time.Sleep(5 * time.Second)
		release(t, last.holds())
	})
}

// A caller of the holder's process that is older than a caller of another process does not go
// before it, nor does it end the wait of a newer caller.
func TestCallersOfTheHoldersProcessAreOrderedWithOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, b := newLocker(t, s), newLocker(t, s)
		first := held(t, a, t.Context(), "k", core.Newest())
		second := comes(t, t.Context(), a, core.Newest())
		third := comes(t, t.Context(), b, core.Newest())
		second.fails(core.ErrSuperseded)
		fourth := comes(t, t.Context(), a, core.Newest())
		third.fails(core.ErrSuperseded)
		fifth := comes(t, t.Context(), b, core.Newest())
		fourth.fails(core.ErrSuperseded)
		release(t, first)
		works(t, fifth.holds())
		release(t, fifth.lease)
	})
}

// A newest caller follows a holder of the same process, and queries name it by its number,
// not the holder's.
func TestTheNewestCallerIsNotSupersededForTheHolderBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, b, c := newLocker(t, s), newLocker(t, s), newLocker(t, s)
		first := held(t, a, t.Context(), "k", core.Newest())
		second := comes(t, t.Context(), b, core.Newest())
		third := comes(t, t.Context(), a, core.Newest())
		second.fails(core.ErrSuperseded)
		inTurn := comes(t, t.Context(), c) // renewals say that others wait
		release(t, first)
		lease := third.holds()
		time.Sleep(time.Minute)
		works(t, lease)
		inTurn.waiting()
		release(t, lease)
		time.Sleep(time.Second)
		release(t, inTurn.holds())
	})
}

// A newest caller does not wait until those before it in its process ask again.
func TestTheNewestCallerAsksAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, b := newLocker(t, s), newLocker(t, s)
		first := held(t, a, t.Context(), "k", core.Newest())
		inTurn := comes(t, t.Context(), b)
		works(t, first)
		second := comes(t, t.Context(), b, core.Newest())
		superseded(t, first)
		release(t, first)
		release(t, second.holds())
		release(t, inTurn.holds())
	})
}

// A caller is displaced after its request was refused, and before it has the answer.
func TestAHintThatComesBeforeTheAnswerIsHeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, b, c := newLocker(t, s), newLocker(t, distant{s, 100 * time.Millisecond, nil}), newLocker(t, s)
		first := held(t, a, t.Context(), "k", core.Newest())
		second := comes(t, t.Context(), b, core.Newest())
		time.Sleep(75 * time.Millisecond)
		third := comes(t, t.Context(), c, core.Newest())
		second.waiting()
		time.Sleep(150 * time.Millisecond)
		second.fails(core.ErrSuperseded)
		release(t, first)
		release(t, third.holds())
	})
}

// A newest caller does not take a grant for a caller in turn: the store has not numbered that
// caller.
func TestTheNewestCallerHasARequestOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, b := newLocker(t, s), newLocker(t, distant{s, 100 * time.Millisecond, nil})
		inTurn := comes(t, t.Context(), b, core.Attentive())
		time.Sleep(75 * time.Millisecond) // it is granted the lock, and has no answer yet
		second := comes(t, t.Context(), b, core.Newest())
		time.Sleep(time.Second)
		lease := second.holds()
		third := comes(t, t.Context(), a, core.Newest())
		time.Sleep(time.Second)
		superseded(t, lease)
		release(t, lease)
		release(t, third.holds())
		time.Sleep(time.Second)
		release(t, inTurn.holds())
	})
}

// A caller finds out by itself if the message is lost.
func TestALostHintDelaysTheNewestCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		deaf := func() *core.Locker { return newLocker(t, &hinting{Store: s, deaf: true}) }
		a, b, c := deaf(), deaf(), deaf()
		first := held(t, a, t.Context(), "k", core.Newest())
		second := comes(t, t.Context(), b, core.Newest())
		third := comes(t, t.Context(), c, core.Newest())
		works(t, first)
		time.Sleep(time.Second)
		second.fails(core.ErrSuperseded)
		third.waiting()
		time.Sleep(10 * time.Second) // a third of the lease, and its tolerance
		superseded(t, first)
		release(t, first)
		release(t, third.holds())
	})
}

func TestAForgedHintSupersedesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		forged, other := &hinting{Store: s}, &hinting{Store: s}
		a, b := newLocker(t, forged), newLocker(t, other)
		first := held(t, a, t.Context(), "k", core.Newest())
		owner, _, _ := s.Holder("k")
		for _, hint := range [][2]string{{"k", owner}, {"", ""}, {"k", owner + "0"}, {"k", ""}, {"other", owner}} {
			forged.hint(hint[0], hint[1])
		}
		works(t, first)
		second := comes(t, t.Context(), b, core.Newest())
		superseded(t, first)
		for range 3 {
			other.hear(driver.Call{What: driver.Displaced, Key: "k"})
			other.hint("", "")
			second.waiting()
		}
		release(t, first)
		works(t, second.holds())
		release(t, second.lease)
	})
}

// A process that was stopped misses its turn, and a newer caller has come and gone meanwhile.
func TestACallerThatWasStoppedIsSupersededAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		var stopped atomic.Bool
		wakes := make(chan struct{})
		a, c := newLocker(t, s), newLocker(t, s)
		b := newLocker(t, stopping{s, &stopped, wakes})
		first := held(t, a, t.Context(), "k", core.Newest())
		second := comes(t, t.Context(), b, core.Newest())
		second.waiting()
		stopped.Store(true)
		release(t, first)
		time.Sleep(500 * time.Millisecond) // longer than the lock is kept for it
		third := comes(t, t.Context(), c, core.Newest())
		release(t, third.holds())
		stopped.Store(false)
		close(wakes)
		time.Sleep(2 * time.Second)
		second.fails(core.ErrSuperseded)
	})
}

// stopping is a store as a process sees it that stops: it hears nothing, and its requests wait.
type stopping struct {
	*memstore.Store
	stopped *atomic.Bool
	wakes   chan struct{}
}

func (s stopping) Calls(id string, hear func(driver.Call)) (stop func()) {
	return s.Store.Calls(id, func(c driver.Call) {
		if !s.stopped.Load() {
			hear(c)
		}
	})
}

func (s stopping) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	if s.stopped.Load() {
		<-s.wakes
	}
	return s.Store.Acquire(ctx, req)
}

// A caller leaves, or its lease ends, while the store is asked about it.
func TestACallerLeavesWhileTheStoreIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, b := newLocker(t, s), newLocker(t, s)
		s.Intercept(during(memstore.Stand, memstore.Delay(100*time.Millisecond)))
		first := held(t, a, t.Context(), "k", core.Newest())
		ctx, leave := context.WithCancel(t.Context())
		second := comes(t, ctx, a, core.Newest()) // stands
		time.Sleep(50 * time.Millisecond)
		leave()
		second.fails(context.Canceled)
		time.Sleep(time.Second)
		third := comes(t, t.Context(), a, core.Newest())
		time.Sleep(50 * time.Millisecond)
		release(t, first) // while third stands
		time.Sleep(time.Second)
		third.holds()
		fourth := comes(t, t.Context(), b, core.Newest())
		time.Sleep(50 * time.Millisecond) // the process asks about third
		release(t, third.lease)
		time.Sleep(time.Second)
		works(t, fourth.holds())
		release(t, fourth.lease)
	})
}

// The holder is asked to stop once for all leases under its context, and by all locks that it took.
func TestALeaseOfSeveralLocksIsSupersededByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, b := newLocker(t, s), newLocker(t, s)
		several, err := a.LockAll(t.Context(), []string{"j", "k"}, core.Newest())
		if err != nil {
			t.Fatal(err)
		}
		inner := held(t, a, several.Context(), "k", core.Newest()) // re-entered: nothing is superseded
		works(t, several)
		next := comes(t, t.Context(), b, core.Newest())
		superseded(t, several)
		superseded(t, inner)
		release(t, inner)
		release(t, several)
		release(t, next.holds())
	})
}

func TestDoSaysThatItsFunctionWasSuperseded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, b := newLocker(t, s), newLocker(t, s)
		for _, returns := range []error{nil, errors.New("stopped")} {
			var next *caller
			err := a.Do(t.Context(), "k", func(ctx context.Context) error {
				next = comes(t, t.Context(), b, core.Newest())
				<-ctx.Done()
				return returns
			}, core.Newest())
			if !errors.Is(err, returns) || errors.Is(err, core.ErrSuperseded) != (returns != nil) {
				t.Errorf("a function that returns %v: %v", returns, err)
			}
			release(t, next.holds())
		}
	})
}

func TestOneCallerWaitsInAllProcesses(t *testing.T) {
	inFleets(t, func(t *testing.T, l []*core.Locker) {
		first := held(t, l[0], t.Context(), "k", core.OneWaiter())
		ctx, leave := context.WithCancel(t.Context())
		second := comes(t, ctx, l[1], core.OneWaiter())
		second.waiting()
		time.Sleep(time.Minute) // it asks again and again
		third := comes(t, t.Context(), l[2], core.OneWaiter())
		third.fails(core.ErrQueueFull)
		third.fails(core.ErrHeld)
		leave()
		second.fails(context.Canceled)
		fourth := comes(t, t.Context(), l[3], core.OneWaiter()) // its place is free at once
		fourth.waiting()
		works(t, first)
		release(t, first)
		fourth.holds()
		fifth := comes(t, t.Context(), l[2], core.OneWaiter())
		fifth.waiting()
		release(t, fourth.lease)
		release(t, fifth.holds())
	})
}

func TestADeadWaiterKeepsNoCallerOutForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		first := held(t, newLocker(t, s), t.Context(), "k", core.OneWaiter())
		rep, err := s.Acquire(t.Context(), driver.AcquireRequest{
			Key: "k", Owner: "dead:1", TTL: time.Minute, Waiter: "dead", Line: driver.OneWaiter,
		})
		if err != nil || rep.Granted || rep.Out {
			t.Fatal(rep, err)
		}
		b := newLocker(t, s)
		comes(t, t.Context(), b, core.OneWaiter()).fails(core.ErrQueueFull)
		time.Sleep(1500 * time.Millisecond)
		second := comes(t, t.Context(), b, core.OneWaiter())
		second.waiting()
		release(t, first)
		time.Sleep(time.Second)
		release(t, second.holds())
	})
}

// unordered is a store that knows callers in turn alone.
type unordered struct{ driver.Store }

func TestLinesThatCannotBe(t *testing.T) {
	l := newLocker(t, memstore.New())
	without := newLocker(t, unordered{memstore.New()})
	for _, o := range []core.Option{core.Newest(), core.OneWaiter()} {
		if _, err := core.New(memstore.New(), o); !errors.Is(err, core.ErrConfig) {
			t.Error("a locker takes it: ", err)
		}
		for _, opts := range [][]core.GuardOption{{core.Shared()}, {core.Permits(2)}, {core.ShareReads()}, {core.Wait(0)}} {
			if _, err := core.NewGuard(l, "k", append(opts, o)...); !errors.Is(err, core.ErrConfig) {
				t.Error("a rule takes it: ", err)
			}
		}
		if _, err := core.NewGuard(l, "k", o); err != nil {
			t.Error(err)
		}
		if _, err := core.NewGuard(without, "k", o); !errors.Is(err, core.ErrConfig) {
			t.Error("a rule on a store without an order takes it: ", err)
		}
		if _, err := without.Lock(t.Context(), "k", o); !errors.Is(err, core.ErrConfig) {
			t.Error("a lock on a store without an order takes it: ", err)
		}
		if err := core.Lead(t.Context(), l, "k", nil, o); !errors.Is(err, core.ErrConfig) {
			t.Error("a leader takes it: ", err)
		}
		lease, err := l.TryLock(t.Context(), "k", o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.TryLock(t.Context(), "k", o); !errors.Is(err, core.ErrHeld) || errors.Is(err, core.ErrSuperseded) {
			t.Error(err)
		}
		cause := context.Cause(lease.Context())
		if cause != nil {
			t.Error("a try has superseded the holder: ", cause)
		}
		release(t, lease)
	}
	if _, err := core.NewGuard(l, "k", core.Newest(), core.OneWaiter()); !errors.Is(err, core.ErrConfig) {
		t.Error("a rule takes both: ", err)
	}
}

// Of callers that come at random, from processes at all distances, one holds the lock at a time, the
// last is not superseded, and none waits for ever.
func TestTheLastOfManyCallersIsNotSuperseded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rounds, callers = 40, 50
		store := memstore.New()
		var lockers []*core.Locker
		for _, trip := range []time.Duration{0, 200 * time.Microsecond, 2 * time.Millisecond, 10 * time.Millisecond} {
			lockers = append(lockers, newLocker(t, unreliable{distant{store, trip, nil}}))
		}
		var inside, ran, ended atomic.Int32
		for range rounds {
			var all sync.WaitGroup
			var last error
			for i := range callers {
				all.Go(func() {
					opts := []core.Option{core.Newest()}
					if i%10 == 5 {
						opts = nil
					}
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					if i%7 == 3 {
						time.AfterFunc(time.Duration(rand.Int64N(int64(20*time.Millisecond))), cancel)
					}
					lease, err := lockers[rand.IntN(len(lockers))].Lock(ctx, "k", opts...)
					if i == callers-1 {
						last = err
					}
					if err != nil {
						if !errors.Is(err, core.ErrSuperseded) && ctx.Err() == nil {
							t.Error(err)
						}
						return
					}
					if inside.Add(1) != 1 {
						t.Error("two are inside")
					}
					ran.Add(1)
					select {
					case <-lease.Context().Done():
						ended.Add(1)
					case <-time.After(time.Duration(rand.Int64N(int64(30 * time.Millisecond)))):
					}
					inside.Add(-1)
					_ = lease.Release(t.Context())
				})
				time.Sleep(time.Duration(rand.Int64N(int64(3 * time.Millisecond))))
				if i == callers-2 {
					time.Sleep(100 * time.Millisecond) // the last is the newest for every process
				}
			}
			all.Wait()
			if last != nil {
				t.Errorf("the last caller: %v", last)
			}
		}
		if ran.Load() < 2*rounds || ended.Load() < rounds {
			t.Errorf("%d ran, %d of them were superseded", ran.Load(), ended.Load())
		}
	})
}

// Stand implements [driver.Turns].
func (d distant) Stand(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	time.Sleep(d.trip / 2)
	defer time.Sleep(d.trip / 2)
	return d.Store.Stand(ctx, req)
}
