package core_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/logtest"
)

// losses records reports of lost leases, as OnLost or as an Observer.
type losses struct {
	mu   sync.Mutex
	told []core.Loss
}

func (l *losses) add(x core.Loss) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = append(l.told, x)
}

// all returns the recorded calls, once nothing runs any more.
func (l *losses) all() []core.Loss {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.told
}

func (l *losses) Start(ctx context.Context, _ observe.Operation) (context.Context, observe.Observation) {
	return ctx, observe.Observation{
		Lost: l.add,
		Released: func(r observe.Released) {
			if r.Lost != nil {
				l.add(*r.Lost)
			}
		},
	}
}

// denies makes the store deny, with an error, each request about the lock.
func denies(err error) func(*notedStore) {
	return func(s *notedStore) {
		s.Intercept(always(memstore.Fault{Err: err}))
	}
}

func TestALossSaysWhoHeldWhatForHowLongAndWhy(t *testing.T) {
	ends := func(ctx context.Context) { <-ctx.Done() }
	quick := func(context.Context) { time.Sleep(time.Second) } // before the first renewal
	for name, c := range map[string]struct {
		opts   []core.GuardOption
		happen func(*notedStore)
		work   func(context.Context)
		answer bool
		want   observe.LossReason
		held   time.Duration
		err    error
	}{
		"expired":              {opts: []core.GuardOption{core.TTL(10 * time.Second)}, work: ends, want: observe.LossExpired, held: 9898 * time.Millisecond},
		"deleted":              {happen: denies(driver.ErrDeleted), work: ends, want: observe.LossDeleted, held: 10 * time.Second, err: driver.ErrDeleted},
		"taken over":           {happen: denies(driver.ErrTakenOver), work: ends, want: observe.LossTakenOver, held: 10 * time.Second, err: driver.ErrTakenOver},
		"released by others":   {happen: denies(driver.ErrRevoked), work: ends, want: observe.LossRevoked, held: 10 * time.Second, err: driver.ErrRevoked},
		"found by the holder":  {happen: denies(driver.ErrRevoked), work: quick, want: observe.LossRevoked, held: time.Second},
		"one or the other":     {happen: denies(driver.ErrNotOwner), work: ends, want: observe.LossNotOwner, held: 10 * time.Second, err: driver.ErrNotOwner},
		"unreachable":          {happen: denies(core.ErrUnavailable), work: ends, want: observe.LossUnavailable, held: 29698 * time.Millisecond, err: core.ErrUnavailable},
		"maximum hold":         {opts: []core.GuardOption{core.MaxHold(20 * time.Second)}, work: ends, want: observe.LossMaxHold, held: 20 * time.Second},
		"answered before":      {happen: denies(driver.ErrDeleted), work: ends, answer: true, want: observe.LossDeleted, held: 10 * time.Second, err: driver.ErrDeleted},
		"found by the release": {happen: denies(driver.ErrTakenOver), work: quick, want: observe.LossTakenOver, held: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, heard, seen := newStore(), &losses{}, &losses{}
				l := newLocker(t, s, core.WithObserver(seen), core.OnLost(heard.add))
				g := core.Serialize(l, "account/{id}", append(c.opts, core.PerPrincipal(tenant, 1, 1))...)
				var owner string
				var token int64
				g.Do(t.Context(), of("a", "1"), func(ctx context.Context) bool {
					owner, token = s.holder("account/1"), core.LeaseFromContext(ctx).Token()
					if c.answer && !adapter.BeginAnswer(ctx, true) {
						t.Error("the answer was held back, though nobody asked for that")
					}
					if c.happen != nil {
						c.happen(s)
					}
					c.work(ctx)
					return c.answer
				})
				s.Intercept(nil)
				want := core.Loss{
					Key: "account/1", Rule: "account/{id}", Owner: owner, Route: "/accounts/{id}", Principal: "a", Token: token,
					Held: c.held, Reason: c.want, Answered: "no",
				}
				if c.answer {
					want.Answered = "yes"
				}
				if len(heard.all()) != 1 || len(seen.all()) != 1 {
					t.Fatalf("OnLost was told %v, the observer %v", heard.all(), seen.all())
				}
				for _, got := range []core.Loss{heard.all()[0], seen.all()[0]} {
					if !errors.Is(got.Err, c.err) {
						t.Errorf("error %v; want %v", got.Err, c.err)
					}
					if got.Err = nil; got != want {
						t.Errorf("\n%#v; want\n%#v", got, want)
					}
				}
			})
		})
	}
}

func TestALossOfALockInCodeSaysWhatIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		heard := &losses{}
		l := newLocker(t, newStore(), core.OnLost(heard.add), core.TTL(time.Second))
		<-held(t, l, t.Context(), "k").Context().Done()
		// Under a guard the request is known.
		g := core.Serialize(l, "account/{id}", core.Watchdog(time.Minute))
		g.Do(t.Context(), one, func(ctx context.Context) bool {
			<-held(t, l, ctx, "m").Context().Done()
			return true
		})
		told := heard.all()
		if len(told) != 2 || told[0].Route != "" || told[0].Answered != "" ||
			told[1].Route != "/accounts/{id}" || told[1].Answered != "no" || told[1].Key != "m" {
			t.Errorf("%v", told)
		}
	})
}

func TestAnAnswerOfAnAdapterThatSaysItOnlyAtTheEndCountsFromThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, heard := newStore(), &losses{}
		l := newLocker(t, s, core.OnLost(heard.add))
		core.Serialize(l, "account/{id}").Do(t.Context(), one, func(context.Context) bool {
			s.Expire("account/1") // which the release finds
			return true
		})
		told := heard.all()
		if len(told) != 1 || told[0].Answered != "yes" {
			t.Errorf("%v", told)
		}
	})
}

func TestCommitHappensOnlyWhileEveryLockIsHeld(t *testing.T) {
	for name, c := range map[string]struct {
		before func(t *testing.T, s *notedStore, inner *core.Lease)
		want   error
	}{
		"held":            {func(*testing.T, *notedStore, *core.Lease) {}, nil},
		"deleted":         {func(_ *testing.T, s *notedStore, _ *core.Lease) { s.Expire("inner") }, core.ErrLost},
		"taken over":      {func(_ *testing.T, s *notedStore, _ *core.Lease) { s.Take("inner", time.Minute) }, core.ErrLost},
		"outer one taken": {func(_ *testing.T, s *notedStore, _ *core.Lease) { s.Take("outer", time.Minute) }, core.ErrLost},
		"unreachable":     {func(_ *testing.T, s *notedStore, _ *core.Lease) { denies(core.ErrUnavailable)(s) }, core.ErrUnavailable},
		"store that hangs": {func(_ *testing.T, s *notedStore, _ *core.Lease) {
			s.Intercept(always(memstore.Fault{Before: time.Hour}))
		}, core.ErrUnavailable},
		"maximum hold": {func(_ *testing.T, _ *notedStore, inner *core.Lease) { <-inner.Context().Done() }, core.ErrMaxHold},
		"client gone":  {nil, context.Canceled},
		"released": {func(t *testing.T, _ *notedStore, inner *core.Lease) {
			release(t, inner)
		}, core.ErrReleased},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				l := newLocker(t, s)
				request, cancel := context.WithCancel(t.Context())
				defer cancel()
				outer := held(t, l, request, "outer")
				inner := held(t, l, outer.Context(), "inner", core.MaxHold(5*time.Second))
				ctx := inner.Context()
				if c.before == nil {
					cancel()
				} else {
					c.before(t, s, inner)
				}
				failure, committed := errors.New("of the database"), 0
				commit := func() error { committed++; return failure }
				err := core.Commit(ctx, commit)
				switch {
				case c.want == nil && (!errors.Is(err, failure) || committed != 1):
					t.Errorf("%v after %d commits; want the commit's own error", err, committed)
				case c.want != nil && (!errors.Is(err, c.want) || committed != 0):
					t.Errorf("%v after %d commits; want %v and none", err, committed, c.want)
				}
				s.Intercept(nil)
				_ = inner.Release(t.Context())
				_ = outer.Release(t.Context())
				time.Sleep(time.Minute) // what could not be released is swept up
			})
		})
	}
}

func TestCheckAsksOnceForALockThatWasReentered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s)
		outer := held(t, l, t.Context(), "k")
		inner := held(t, l, outer.Context(), "k")
		if err := core.Check(inner.Context()); err != nil || s.count(memstore.Renew) != 1 {
			t.Errorf("%v after %d requests", err, s.count(memstore.Renew))
		}
		release(t, inner)
		release(t, outer)
	})
}

func TestThereIsNothingToCheckWithoutALease(t *testing.T) {
	inWorld(t, func(w *world) {
		logtest.Default(w.T)
		never := func() error { w.Error("committed"); return nil }
		wantErr(w.T, core.Commit(w.Context(), never), core.ErrNoLease)
		// Unless an option of the rule makes it no condition.
		w.down(core.ErrUnavailable)
		committed := false
		core.Serialize(w.locker, "account/{id}", core.FailOpen()).Do(w.Context(), one, func(ctx context.Context) bool {
			wantErr(w.T, core.Commit(ctx, func() error { committed = true; return nil }), nil)
			return true
		})
		if !committed {
			w.Error("not committed")
		}
	})
}

func TestAnAnswerIsCheckedBeforeItLeaves(t *testing.T) {
	for name, c := range map[string]struct {
		opts    []core.GuardOption
		happen  func(*notedStore)
		failure bool // the answer is one
		silent  bool // the handler gives none
		want    reason.Reason
		renews  int
	}{
		"held":                         {opts: []core.GuardOption{core.CheckAnswer()}, renews: 1},
		"held, no answer":              {opts: []core.GuardOption{core.CheckAnswer()}, silent: true, renews: 1},
		"taken over":                   {opts: []core.GuardOption{core.CheckAnswer()}, happen: denies(driver.ErrTakenOver), want: reason.Lost, renews: 1},
		"taken over, no answer":        {opts: []core.GuardOption{core.CheckAnswer()}, happen: denies(driver.ErrTakenOver), silent: true, want: reason.Lost, renews: 1},
		"taken over, answer a failure": {opts: []core.GuardOption{core.CheckAnswer()}, happen: denies(driver.ErrTakenOver), failure: true},
		"taken over, not checked":      {happen: denies(driver.ErrTakenOver)},
		"unreachable, lease good":      {opts: []core.GuardOption{core.CheckAnswer()}, happen: denies(core.ErrUnavailable), renews: 1},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				g := core.Serialize(w.locker, "account/{id}", c.opts...)
				refusal := g.Do(w.Context(), one, func(ctx context.Context) bool {
					if c.happen != nil {
						c.happen(w.store)
					}
					if c.silent {
						return false
					}
					left := adapter.BeginAnswer(ctx, !c.failure)
					if left != (c.want == "") || adapter.BeginAnswer(ctx, !c.failure) != left {
						w.Errorf("left: %v", left)
					}
					// An answer that was held back stays so, whatever is
					// learned later.
					w.store.Intercept(nil)
					return left
				})
				w.store.Intercept(nil)
				switch {
				case c.want == "" && refusal != nil:
					w.Errorf("refusal %+v; want none", refusal)
				case c.want != "" && (refusal == nil || refusal.Reason != c.want || !refusal.Ran || refusal.Retryable()):
					w.Errorf("refusal %+v; want %s", refusal, c.want)
				}
				time.Sleep(time.Minute)
			})
		})
	}
	t.Run("after the maximum hold", func(t *testing.T) {
		inWorld(t, func(w *world) {
			g := core.Serialize(w.locker, "account/{id}", core.CheckAnswer(), core.MaxHold(time.Second))
			refusal := g.Do(w.Context(), one, func(ctx context.Context) bool {
				<-ctx.Done()
				return adapter.BeginAnswer(ctx, true)
			})
			if refusal == nil || refusal.Reason != reason.MaxHold {
				w.Errorf("%+v", refusal)
			}
		})
	})
	t.Run("released by the handler itself", func(t *testing.T) {
		inWorld(t, func(w *world) {
			g := core.Serialize(w.locker, "account/{id}", core.CheckAnswer())
			refusal := g.Do(w.Context(), one, func(ctx context.Context) bool {
				release(w.T, core.LeaseFromContext(ctx))
				return adapter.BeginAnswer(ctx, true)
			})
			if refusal != nil {
				w.Errorf("%+v", refusal)
			}
		})
	})
}

// Whichever is first, the answer or the loss: the client gets one answer, and it is
// the handler's exactly if that was let out.
func TestAnAnswerAndALossAtTheSameMoment(t *testing.T) {
	for _, checked := range []bool{true, false} {
		inWorld(t, func(w *world) {
			const lease = 100 * time.Millisecond
			opts := []core.GuardOption{core.TTL(lease), core.Wait(time.Minute), core.OnLost(func(core.Loss) {})}
			if checked {
				opts = append(opts, core.CheckAnswer())
			}
			g := core.Serialize(w.locker, "account/{id}", opts...)
			var wg sync.WaitGroup
			for i := range 200 {
				wg.Go(func() {
					left := false
					refusal := g.Do(w.Context(), request{"id": fmt.Sprint(i)}, func(ctx context.Context) bool {
						time.Sleep(lease - lease/100 - 2*time.Millisecond) // the end of the lease
						left = adapter.BeginAnswer(ctx, true)
						return left
					})
					if left != (refusal == nil) {
						w.Errorf("left %v, and the refusal is %+v", left, refusal)
					}
				})
			}
			wg.Wait()
		})
	}
}

// A service that began without an observer had no line about two holders of one lock.
func TestALossThatNoCodeIsToldOfIsLoggedOnce(t *testing.T) {
	for name, c := range map[string]struct {
		opts []core.LockerOption
		want int
	}{
		"neither":     {nil, 1},
		"OnLost":      {[]core.LockerOption{core.OnLost(func(core.Loss) {})}, 0},
		"an observer": {[]core.LockerOption{core.WithObserver(&losses{})}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			logged := logtest.Default(t)
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				l := newLocker(t, s, c.opts...)
				lease := held(t, l, t.Context(), "k")
				s.Take("k", time.Hour)
				<-lease.Context().Done()
				wantErr(t, lease.Release(t.Context()), core.ErrLost)
				synctest.Wait()
				text := logged.String()
				if n := strings.Count(text, "interlock: lease lost"); n != c.want {
					t.Errorf("%d lines about the loss; want %d:\n%s", n, c.want, text)
				}
				if hash := core.Hashed("k").Hash(); c.want == 1 && (!strings.Contains(text, "key_hash="+hash) || !strings.Contains(text, "taken_over")) {
					t.Errorf("want the hash %s and the reason:\n%s", hash, text)
				}
			})
		})
	}
}
