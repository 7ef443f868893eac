package gather_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/gather"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/internal/testkit"
)

var errLeft = errors.New("the client has gone")

// wantErrors checks an error: it matches each of the wanted, and ErrUnknown only if that is wanted.
func wantErrors(t *testing.T, err error, want ...error) {
	t.Helper()
	unknown := false
	for _, w := range want {
		unknown = unknown || w == gather.ErrUnknown //nolint:errorlint // the wanted error itself
		if !errors.Is(err, w) {
			t.Errorf("%v; want an error that matches %q", err, w)
		}
	}
	if errors.Is(err, gather.ErrUnknown) != unknown {
		t.Errorf("%v; want ErrUnknown: %v", err, unknown)
	}
}

func TestAllWhoWaitForAKeyShareTheNextSection(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a := w.do("k", "a")
		rest := []*call{w.do("k", "b"), w.do("k", "c"), w.do("k", "d")}
		w.wantRan("k: [a]")
		w.ends <- end{}
		a.want("done a")
		w.wantRan("k: [b c d]")
		w.ends <- end{}
		for i, c := range rest {
			c.want(fmt.Sprintf("done %c", 'b'+i))
		}
		if n := w.store.Requests(memstore.Acquire); n != 1 {
			t.Errorf("%d requests for the lock; want 1: the second batch gets it in memory", n)
		}
	})
}

func TestKeysDoNotWaitForEachOther(t *testing.T) {
	inBubble(t, func(_ *testing.T, w *world) {
		hot := w.do("hot", "a")
		w.do("hot", "b")
		cold := w.do("cold", "c")
		w.wantRan("hot: [a]", "cold: [c]")
		w.ends <- end{} // whichever section takes it, the other goes on
		w.ends <- end{}
		w.ends <- end{}
		w.wantRan("hot: [b]")
		hot.want("done a")
		cold.want("done c")
	})
}

func TestACallerThatLeavesBeforeItsItemIsTakenTakesItOut(t *testing.T) {
	for _, who := range []string{"the leader", "the second", "the last"} {
		t.Run(who, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				free := w.heldElsewhere("k")
				all := map[string]*call{"the leader": w.do("k", "a"), "the second": w.do("k", "b"), "the third": w.do("k", "c"), "the last": w.do("k", "d")}
				all[who].leave(errLeft)
				all[who].want("", errLeft)
				delete(all, who)
				w.ends <- end{}
				free()
				w.wantRan(map[string]string{"the leader": "k: [b c d]", "the second": "k: [a c d]", "the last": "k: [a b c]"}[who])
				for _, c := range all {
					if _, err := c.has(); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}

// The place among the processes that wait is the process's, as long as callers wait.
func TestAProcessKeepsItsPlaceWhenItsLeaderLeaves(t *testing.T) {
	inBubble(t, func(_ *testing.T, w *world) {
		other := newWorld(w.t, w.store)
		free := w.heldElsewhere("k")
		leader, second := w.do("k", "a"), w.do("k", "b")
		theirs := other.do("k", "x")
		leader.leave(errLeft)
		leader.want("", errLeft)
		free()
		w.wantRan("k: [b]")
		other.wantRan()
		w.ends <- end{}
		second.want("done b")
		other.wantRan("k: [x]")
		other.ends <- end{}
		theirs.want("done x")
	})
}

func TestACallerThatLeavesLaterGetsItsErrorAndTheItemIsCarriedOut(t *testing.T) {
	inBubble(t, func(_ *testing.T, w *world) {
		first := w.do("k", "a")
		leader, member := w.do("k", "b"), w.do("k", "c")
		w.ends <- end{}
		first.want("done a")
		w.wantRan("k: [a]", "k: [b c]")
		member.leave(errLeft)
		member.want("", errLeft, gather.ErrUnknown)
		leader.leave(errLeft) // it runs the section of others: the end of its context ends nothing
		leader.waits()
		w.ends <- end{}
		leader.want("done b")
	})
}

func TestTheWaitOfAnItemEndsAlone(t *testing.T) {
	inBubble(t, func(_ *testing.T, w *world) {
		free := w.heldElsewhere("k")
		a := w.do("k", "a")
		time.Sleep(time.Second)
		b, c := w.do("k", "b"), w.do("k", "c")
		time.Sleep(time.Second)
		d := w.do("k", "d")
		time.Sleep(2500 * time.Millisecond)
		a.want("", core.ErrHeld)
		b.want("", core.ErrHeld)
		c.want("", core.ErrHeld)
		d.waits()
		w.ends <- end{}
		free()
		w.wantRan("k: [d]")
		d.want("done d")
	}, core.Wait(3*time.Second))
}

func TestASectionFailsItsItems(t *testing.T) {
	broken := errors.New("the disk is full")
	for name, c := range map[string]struct {
		end  end
		want [2][]error // of the items b and c
		res  [2]string
	}{
		"an error":                 {end{err: broken}, [2][]error{{broken}, {broken}}, [2]string{"done b", "done c"}},
		"an error of one item":     {end{err: gather.Errors{nil, broken}}, [2][]error{nil, {broken}}, [2]string{"done b", "done c"}},
		"an unknown outcome":       {end{err: errors.Join(broken, gather.ErrUnknown)}, [2][]error{{broken, gather.ErrUnknown}, {broken, gather.ErrUnknown}}, [2]string{"done b", "done c"}},
		"too few results":          {end{results: []string{"one"}}, [2][]error{{gather.ErrResults, gather.ErrUnknown}, {gather.ErrResults, gather.ErrUnknown}}, [2]string{}},
		"too many results":         {end{results: []string{"one", "two", "three"}}, [2][]error{{gather.ErrResults, gather.ErrUnknown}, {gather.ErrResults, gather.ErrUnknown}}, [2]string{}},
		"too few errors":           {end{err: gather.Errors{broken}}, [2][]error{{gather.ErrResults, gather.ErrUnknown, broken}, {gather.ErrResults, gather.ErrUnknown}}, [2]string{}},
		"a panic (of the second)":  {end{panics: true}, [2][]error{nil, {gather.ErrPanicked, gather.ErrUnknown}}, [2]string{}},
		"errors without results":   {end{err: gather.Errors{broken, broken}, results: []string{}}, [2][]error{{broken}, {broken}}, [2]string{}},
		"an error and few results": {end{err: gather.Errors{broken, nil}, results: []string{}}, [2][]error{{gather.ErrResults, gather.ErrUnknown}, {gather.ErrResults, gather.ErrUnknown}}, [2]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				w.do("k", "a")
				leader, member := w.do("k", "b"), w.do("k", "c")
				w.ends <- end{}
				w.ends <- c.end
				w.wantRan("k: [a]", "k: [b c]")
				if c.end.panics {
					if _, _ = leader.has(); leader.panic == nil {
						t.Error("the panic did not go on in the caller that led")
					}
				} else {
					leader.want(c.res[0], c.want[0]...)
				}
				member.want(c.res[1], c.want[1]...)
				after := w.do("k", "d")
				w.ends <- end{}
				after.want("done d") // the lock is free
			})
		})
	}
}

func TestALostLeaseFailsTheItemsAsUnknown(t *testing.T) {
	for name, c := range map[string]struct {
		opts []gather.Option
		lose func(w *world)
		want error
	}{
		"taken over": {nil, func(w *world) {
			w.store.Expire("k")
			w.store.Take("k", time.Minute)
			time.Sleep(30 * time.Second)
		}, core.ErrLost},
		"MaxHold": {[]gather.Option{core.MaxHold(time.Second)}, func(*world) { time.Sleep(2 * time.Second) }, core.ErrMaxHold},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(_ *testing.T, w *world) {
				w.do("k", "a")
				leader, member := w.do("k", "b"), w.do("k", "c")
				w.ends <- end{}
				w.wantRan("k: [a]", "k: [b c]")
				c.lose(w)
				leader.want("done b", c.want, gather.ErrUnknown)
				member.want("done c", c.want, gather.ErrUnknown)
			}, c.opts...)
		})
	}
}

func TestAStoreThatFailsIsToldToAllWhoWait(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.store.Intercept(func(r memstore.Request) memstore.Fault {
			if r.Op == memstore.Acquire {
				return memstore.Fault{Err: core.ErrNotReplicated, Before: time.Second}
			}
			return memstore.Fault{}
		})
		all := []*call{w.do("k", "a"), w.do("k", "b"), w.do("k", "c")}
		time.Sleep(2 * time.Second)
		for _, c := range all {
			c.want("", core.ErrNotReplicated)
		}
		if n := w.store.Requests(memstore.Acquire); n != 1 {
			t.Errorf("%d requests; want 1 for all three", n)
		}
	})
}

func TestAClosedLockerRefusesAllWhoWait(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.store.Take("k", time.Hour)
		all := []*call{w.do("k", "a"), w.do("k", "b"), w.do("k", "c")}
		if err := w.locker.Close(w.t.Context()); err != nil {
			t.Error(err)
		}
		all = append(all, w.do("k", "d"))
		for _, c := range all {
			c.want("", core.ErrClosed)
		}
	})
}

func TestNoSectionWaitsForABatchThatItsCallersHold(t *testing.T) {
	for name, key := range map[string]string{"its own key": "account/1", "the key of its caller": "bank/1"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				testkit.LogTo(t)
				locker := testkit.Locker(t)
				var inner *gather.Group[string, string]
				outer := gather.New(locker, gather.Each(func(ctx context.Context, _, item string) (string, error) {
					return inner.Do(ctx, "account/1", item)
				}))
				inner = gather.New(locker, gather.Each(func(ctx context.Context, _, item string) (string, error) {
					if key == "bank/1" {
						return outer.Do(ctx, key, item)
					}
					return inner.Do(ctx, key, item)
				}))
				begin := time.Now()
				_, err := outer.Do(t.Context(), "bank/1", "x")
				wantErrors(t, err, core.ErrHeldByCaller)
				if took := time.Since(begin); took != 0 {
					t.Errorf("refused after %v; want at once", took)
				}
			})
		})
	}
}

func TestAHolderOfTheLockDoesNotWaitForItself(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		lease, err := w.locker.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		w.doIn(lease.Context(), "k", "a").want("", core.ErrHeldByCaller)
		// Another key it may wait for, but not for ever.
		w.store.Take("l", time.Hour)
		nested := []*call{w.doIn(lease.Context(), "l", "b"), w.doIn(lease.Context(), "l", "c"), w.doIn(lease.Context(), "l", "d")}
		time.Sleep(5 * time.Second)
		for _, c := range nested {
			c.want("", core.ErrHeld)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

type valueKey struct{}

func TestTheContextOfASectionHasNothingOfItsCallers(t *testing.T) {
	for name, c := range map[string]struct {
		opts []gather.Option
		want any
	}{
		"by default": {nil, nil},
		"Values": {[]gather.Option{gather.Values(func(leader context.Context) context.Context {
			return context.WithValue(leader, valueKey{}, "shared")
		})}, "shared"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				testkit.LogTo(t)
				locker := testkit.Locker(t)
				ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), valueKey{}, "mine"), time.Minute)
				defer cancel()
				group := gather.New(locker, gather.Each(func(inner context.Context, key string, _ int) (int64, error) {
					_, limited := inner.Deadline()
					lease := core.LeaseFromContext(inner)
					if got := inner.Value(valueKey{}); limited || got != c.want || lease.Key() != key {
						t.Errorf("deadline: %v, value %v, lease %v; want no deadline, %v and the lease of %q", limited, got, lease, c.want, key)
					}
					cancel()
					return lease.Token(), inner.Err()
				}), c.opts...)
				if token, err := group.Do(ctx, "k", 1); err != nil || token == 0 {
					t.Errorf("%d, %v; want a token: the caller that leads has left, and the section goes on", token, err)
				}
			})
		})
	}
}
