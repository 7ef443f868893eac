package alongside_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/alongside"
	"github.com/interlock-go/interlock/core/memstore"
	_ "github.com/interlock-go/interlock/internal/bubble"
)

const (
	key   = "account/42"
	lease = 8 * time.Second
)

var errDown = errors.New("the server of the other library does not answer")

// stage is a locker, and the lock of another library that records its calls.
type stage struct {
	*testing.T
	store  *memstore.Store
	locker *core.Locker
	calls  []string // of the other lock, which never has two at the same time
	other  alongside.Lock
}

// on runs a test in a bubble.
func on(t *testing.T, run func(s *stage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &stage{T: t, store: memstore.New()}
		locker, err := core.New(s.store)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := locker.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}()
		s.locker = locker
		s.other = alongside.Lock{
			Lease: lease, Acquire: s.call("acquire", nil), Renew: s.call("renew", nil), Release: s.call("release", nil),
		}
		run(s)
	})
}

// call is a function of the other lock.
func (s *stage) call(name string, f func(ctx context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		s.calls = append(s.calls, name)
		if f != nil {
			return f(ctx)
		}
		return nil
	}
}

// do runs a function under both locks.
func (s *stage) do(fn func(ctx context.Context) error) error {
	return s.locker.Do(s.Context(), key, func(ctx context.Context) error { return alongside.Do(ctx, s.other, fn) })
}

// want compares an error by errors.Is, and nil.
func (s *stage) want(err error, all ...error) {
	s.Helper()
	if len(all) == 0 && err != nil {
		s.Errorf("it returned %v", err)
	}
	for _, want := range all {
		if !errors.Is(err, want) {
			s.Errorf("it returned %v; want %v", err, want)
		}
	}
}

// wantCalls compares the calls of the other lock, without the renewals.
func (s *stage) wantCalls(want ...string) {
	s.Helper()
	got := slices.DeleteFunc(slices.Clone(s.calls), func(c string) bool { return c == "renew" })
	if !slices.Equal(got, want) {
		s.Errorf("the other lock was asked for %q; want %q", s.calls, want)
	}
}

// ends waits for the end of a context and compares the cause, and how long that took.
func (s *stage) ends(ctx context.Context, begin time.Time, after time.Duration, cause error) {
	s.Helper()
	select {
	case <-ctx.Done():
	case <-time.After(after + time.Hour):
	}
	if !errors.Is(context.Cause(ctx), cause) {
		s.Errorf("the context ended with %v; want %v", context.Cause(ctx), cause)
	}
	if took := time.Since(begin); took != after {
		s.Errorf("the context ended after %v; want %v", took, after)
	}
}

// trusted is how long a renewal counts.
const trusted = lease - lease/100 - 2*time.Millisecond

func TestTheOtherLockIsTakenAfterTheLeaseAndReleasedBeforeIt(t *testing.T) {
	on(t, func(s *stage) {
		held := func(context.Context) error {
			if _, _, ok := s.store.Holder(key); !ok {
				s.Error("the lock of this library is not held")
			}
			return nil
		}
		s.other.Acquire, s.other.Release = s.call("acquire", held), s.call("release", held)
		s.want(s.do(s.call("run", func(ctx context.Context) error {
			if core.LeaseFromContext(ctx).Key() != key {
				s.Error("the function's context does not carry the lease")
			}
			return held(ctx)
		})))
		s.wantCalls("acquire", "run", "release")
		if _, _, ok := s.store.Holder(key); ok {
			s.Error("the lock of this library is still held")
		}
	})
}

func TestTheOtherLockIsRenewedWhileTheFunctionRuns(t *testing.T) {
	on(t, func(s *stage) {
		var renewed []time.Duration // since it was acquired
		begin := time.Now()
		s.other.Renew = func(context.Context) error {
			renewed = append(renewed, time.Since(begin))
			return nil
		}
		s.want(s.do(func(ctx context.Context) error {
			time.Sleep(10*lease + time.Second)
			return context.Cause(ctx)
		}))
		for i, at := range renewed {
			if at != time.Duration(i)*lease/4 {
				s.Errorf("renewal %d after %v; want one at once, and then each quarter of the lease", i, at)
			}
		}
		if len(renewed) != 41 {
			s.Errorf("%d renewals in ten leases; want 41", len(renewed))
		}
	})
}

func TestALossThatTheOtherLibraryTellsEndsTheContextAtOnce(t *testing.T) {
	on(t, func(s *stage) {
		renewals := 0
		s.other.Renew = func(context.Context) error {
			if renewals++; renewals == 3 {
				return errors.Join(core.ErrLost, errDown)
			}
			return nil
		}
		begin := time.Now()
		s.want(s.do(func(ctx context.Context) error {
			s.ends(ctx, begin, lease/2, core.ErrLost)
			s.want(core.Commit(ctx, func() error {
				s.Error("committed without the other lock")
				return nil
			}), core.ErrLost)
			time.Sleep(lease)
			return nil // also where the function does not look
		}), core.ErrLost, errDown)
		if renewals != 3 {
			s.Errorf("%d renewals; want 3: a lost lock is not renewed", renewals)
		}
		s.wantCalls("acquire", "release")
	})
}

func TestRenewalsThatFailEndTheContextBeforeTheLeaseOfTheOtherLock(t *testing.T) {
	on(t, func(s *stage) {
		var down atomic.Bool
		s.other.Renew = func(context.Context) error {
			if down.Load() {
				return errDown
			}
			return nil
		}
		begin := time.Now()
		s.want(s.do(func(ctx context.Context) error {
			down.Store(true)
			time.Sleep(lease/2 + time.Second) // two renewals fail
			down.Store(false)
			time.Sleep(lease)
			s.want(context.Cause(ctx))
			down.Store(true)
			s.ends(ctx, begin, 3*lease/2+trusted, core.ErrLost)
			return nil
		}), core.ErrLost)
	})
}

func TestARenewalThatHangsNeitherKeepsTheContextNorIsOvertakenByTheRelease(t *testing.T) {
	on(t, func(s *stage) {
		renewals := 0
		s.other.Renew = func(context.Context) error {
			if renewals++; renewals == 2 {
				time.Sleep(3 * lease) // also when its context has ended
				s.calls = append(s.calls, "renewed")
			}
			return nil
		}
		begin := time.Now()
		s.want(s.do(func(ctx context.Context) error {
			s.ends(ctx, begin, trusted, core.ErrLost)
			return nil
		}), core.ErrLost)
		s.wantCalls("acquire", "renewed", "release")
	})
}

// The function returns at the moment when the lease ends: that is not in time, in either
// order of the two timers of that moment. A bubble fires them in a random order, so that 32
// functions meet both.
func TestAFunctionThatReturnsAtTheEndOfTheLeaseGetsErrLost(t *testing.T) {
	on(t, func(s *stage) {
		for range 32 {
			renewals := 0
			s.other.Renew = func(context.Context) error {
				if renewals++; renewals > 1 {
					return errDown
				}
				return nil
			}
			s.want(s.do(func(context.Context) error {
				time.Sleep(trusted)
				return nil
			}), core.ErrLost)
		}
	})
}

// A renewal that is on its way when the function returns does not make the return late.
func TestAFunctionThatReturnsInTimeIsNotTold(t *testing.T) {
	on(t, func(s *stage) {
		renewals := 0
		s.other.Renew = func(context.Context) error {
			if renewals++; renewals > 1 {
				time.Sleep(3 * lease)
				return errDown
			}
			return nil
		}
		s.want(s.do(func(context.Context) error {
			time.Sleep(lease / 2)
			return nil
		}))
	})
}

func TestTheLossOfTheLeaseEndsTheContextAndReleasesTheOtherLock(t *testing.T) {
	on(t, func(s *stage) {
		s.want(s.do(func(ctx context.Context) error {
			s.store.Expire(key)
			<-ctx.Done()
			return context.Cause(ctx)
		}), core.ErrLost)
		s.wantCalls("acquire", "release")
	})
}

func TestTheLossOfTheLeaseEndsTheWaitForTheOtherLock(t *testing.T) {
	on(t, func(s *stage) {
		s.other.Acquire = s.call("acquire", func(ctx context.Context) error {
			s.store.Expire(key)
			<-ctx.Done()
			return errDown // the library does not say why
		})
		s.want(s.locker.Do(s.Context(), key, func(ctx context.Context) error {
			err := alongside.Do(ctx, s.other, s.call("run", nil))
			s.want(err, core.ErrLost, errDown)
			return nil
		}), core.ErrLost)
		s.wantCalls("acquire")
	})
}

// The library that does not look at its context takes the lock all the same.
func TestTheFunctionDoesNotRunWhenTheLeaseWasLostMeanwhile(t *testing.T) {
	on(t, func(s *stage) {
		s.other.Acquire = s.call("acquire", func(ctx context.Context) error {
			s.store.Expire(key)
			<-ctx.Done()
			return nil
		})
		s.want(s.do(s.call("run", nil)), core.ErrLost)
		s.wantCalls("acquire", "release")
	})
}

func TestTheFunctionDoesNotRunWithoutTheOtherLock(t *testing.T) {
	on(t, func(s *stage) {
		fails := func(context.Context) error { return errDown }
		s.other.Acquire = s.call("acquire", fails)
		s.want(s.do(s.call("run", nil)), errDown)
		s.wantCalls("acquire")

		s.calls, s.other.Acquire, s.other.Renew = nil, s.call("acquire", nil), fails
		s.want(s.do(s.call("run", nil)), errDown)
		s.wantCalls("acquire", "release")
	})
}

func TestWithoutALeaseOrAWholeLockNothingIsTaken(t *testing.T) {
	on(t, func(s *stage) {
		s.want(alongside.Do(s.Context(), s.other, s.call("run", nil)), core.ErrNoLease)
		for _, change := range []func(*alongside.Lock){
			func(l *alongside.Lock) { l.Lease = 10*time.Millisecond - 1 },
			func(l *alongside.Lock) { l.Acquire = nil },
			func(l *alongside.Lock) { l.Renew = nil },
			func(l *alongside.Lock) { l.Release = nil },
		} {
			whole := s.other
			change(&s.other)
			s.want(s.do(s.call("run", nil)), core.ErrConfig)
			s.other = whole
		}
		s.wantCalls()
	})
}

func TestAReleaseThatFindsTheOtherLockGoneIsALoss(t *testing.T) {
	on(t, func(s *stage) {
		s.other.Release = func(context.Context) error { return errors.Join(core.ErrLost, errDown) }
		failed := errors.New("the work failed")
		s.want(s.do(func(context.Context) error { return failed }), core.ErrLost, errDown, failed)
		s.other.Release = func(context.Context) error { return errDown } // it ends with its lease
		s.want(s.do(func(context.Context) error { return nil }))
	})
}

func TestTheReleaseHasAContextOfItsOwn(t *testing.T) {
	on(t, func(s *stage) {
		ctx, cancel := context.WithCancel(s.Context())
		s.other.Release = s.call("release", func(ctx context.Context) error {
			s.want(ctx.Err())
			if core.LeaseFromContext(ctx) == nil {
				s.Error("the values of the context are missing")
			}
			s.ends(ctx, time.Now(), 2*time.Second, context.DeadlineExceeded)
			return ctx.Err()
		})
		s.want(s.locker.Do(ctx, key, func(ctx context.Context) error {
			return alongside.Do(ctx, s.other, func(context.Context) error { cancel(); return nil })
		}))
		s.wantCalls("acquire", "release")
	})
}

func TestAPanicReleasesBothLocks(t *testing.T) {
	on(t, func(s *stage) {
		func() {
			defer func() {
				if recover() != "oops" {
					s.Error("the panic did not pass")
				}
			}()
			_ = s.do(func(context.Context) error { panic("oops") })
		}()
		s.wantCalls("acquire", "release")
		if _, _, ok := s.store.Holder(key); ok {
			s.Error("the lock of this library is still held")
		}
	})
}
