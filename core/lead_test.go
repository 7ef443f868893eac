package core_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/internal/logtest"
)

// leading starts Lead, and returns how it ends.
func leading(ctx context.Context, l *core.Locker, fn func(context.Context) error, opts ...core.Option) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- core.Lead(ctx, l, "leader", fn, opts...) }()
	return ended
}

func TestOneOfSeveralLeadsAndTheNextOneWhenItIsDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var inside, most, runs atomic.Int32
		var all []<-chan error
		for _, l := range processes(t, memstore.New(), 4) {
			all = append(all, leading(t.Context(), l, func(ctx context.Context) error {
				most.Store(max(most.Load(), inside.Add(1)))
				defer inside.Add(-1)
				runs.Add(1)
				select {
				case <-time.After(time.Minute):
				case <-ctx.Done():
					t.Errorf("the leader's context ended: %v", context.Cause(ctx))
				}
				return nil
			}))
		}
		begin := time.Now()
		for _, ended := range all {
			wantErr(t, <-ended, nil)
		}
		if most.Load() != 1 || runs.Load() != 4 {
			t.Errorf("%d led at once, in %d runs; want 1 and 4", most.Load(), runs.Load())
		}
		// The next one does not wait for the end of a lease.
		if d := time.Since(begin); d < 4*time.Minute || d > 4*time.Minute+10*time.Second {
			t.Errorf("four minutes of leading took %v", d)
		}
	})
}

func TestALeaderThatLostItsLockLeadsAgainWithAGreaterToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l := newLocker(t, s)
		var tokens []int64
		ended := leading(t.Context(), l, func(ctx context.Context) error {
			tokens = append(tokens, core.LeaseFromContext(ctx).Token())
			if len(tokens) == 3 {
				return nil
			}
			free := s.Take("leader", time.Hour)
			time.AfterFunc(10*time.Minute, free)
			<-ctx.Done()
			wantErr(t, context.Cause(ctx), core.ErrLost)
			if len(tokens) == 1 {
				return nil // so a loop ends that waits for its context
			}
			return ctx.Err()
		})
		begin := time.Now()
		wantErr(t, <-ended, nil)
		if len(tokens) != 3 || tokens[1] <= tokens[0] || tokens[2] <= tokens[1] {
			t.Errorf("led with the tokens %v; want three that grow", tokens)
		}
		if d := time.Since(begin); d < 20*time.Minute {
			t.Errorf("led beside another process, which had the lock for 20 min: ended after %v", d)
		}
	})
}

func TestWhatALeaderReturnsEndsLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, memstore.New())
		broken := errors.New("broken")
		for _, want := range []error{broken, nil} {
			runs := 0
			err := core.Lead(t.Context(), l, "leader", func(context.Context) error {
				runs++
				return want
			})
			wantErr(t, err, want)
			if runs != 1 {
				t.Errorf("%d runs, want 1", runs)
			}
			release(t, held(t, l, t.Context(), "leader", core.Wait(0))) // it is free
		}
	})
}

func TestALeaderThatPanicsLeavesNoLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, memstore.New())
		func() {
			defer func() {
				if p := recover(); p != "broken" {
					t.Errorf("recovered %v", p)
				}
			}()
			_ = core.Lead(t.Context(), l, "leader", func(context.Context) error { panic("broken") })
		}()
		release(t, held(t, l, t.Context(), "leader", core.Wait(0)))
	})
}

func TestLeadEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l := newLocker(t, s)
		ctx, cancel := context.WithCancelCause(t.Context())
		shutdown := errors.New("shutdown")
		free := s.Take("leader", time.Hour)
		waiting := leading(ctx, l, func(context.Context) error {
			t.Error("it led")
			return nil
		})
		synctest.Wait()
		cancel(shutdown)
		wantErr(t, <-waiting, shutdown)
		free()

		ctx, cancel = context.WithCancelCause(t.Context())
		began := make(chan struct{})
		led := leading(ctx, l, func(ctx context.Context) error {
			close(began)
			<-ctx.Done()
			return fmt.Errorf("broken off: %w", context.Cause(ctx))
		})
		<-began
		cancel(shutdown)
		wantErr(t, <-led, shutdown)
		release(t, held(t, l, t.Context(), "leader", core.Wait(0)))
	})
}

func TestLeadWaitsWithPausesForAStoreThatIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l := newLocker(t, s)
		s.Intercept(always(memstore.Unreachable))
		led := make(chan struct{})
		ended := leading(t.Context(), l, func(context.Context) error {
			close(led)
			return nil
		})
		time.Sleep(10 * time.Minute)
		down := s.Requests(memstore.Acquire)
		s.Intercept(nil)
		begin := time.Now()
		wantErr(t, <-ended, nil)
		<-led
		// A pause is 2.5 s at least once they have grown, and 5 s at most.
		if down < 100 || down > 300 {
			t.Errorf("%d requests in ten minutes without a store; want about 160", down)
		}
		if d := time.Since(begin); d > 5*time.Second {
			t.Errorf("it led %v after the store was back", d)
		}
	})
}

func TestLeadersTakeTurnsAfterMaxHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		terms := map[int]int{}
		var all []<-chan error
		for i, l := range processes(t, memstore.New(), 2) {
			all = append(all, leading(ctx, l, func(ctx context.Context) error {
				mu.Lock()
				terms[i]++
				mu.Unlock()
				<-ctx.Done()
				return nil
			}, core.MaxHold(time.Minute)))
		}
		time.Sleep(20 * time.Minute)
		cancel()
		for _, ended := range all {
			if err := <-ended; err != nil {
				wantErr(t, err, context.Canceled)
			}
		}
		if terms[0] < 5 || terms[1] < 5 {
			t.Errorf("terms by process: %v; want about ten each", terms)
		}
	})
}

func TestLeadReturnsWhatDoesNotPassByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, memstore.New())
		never := func(context.Context) error {
			t.Error("it led")
			return nil
		}
		wantErr(t, core.Lead(t.Context(), l, "", never), core.ErrKey)
		wantErr(t, core.Lead(t.Context(), l, "leader", never, core.Watchdog(0)), core.ErrConfig)
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantErr(t, core.Lead(t.Context(), l, "leader", never), core.ErrClosed)
	})
}

// Otherwise a locker would be without a leader in the pauses if it waits for its locks
// no longer than a second.
func TestLeadWaitsForAsLongAsItTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l := newLocker(t, s, core.Wait(time.Second))
		free := s.Take("leader", 2*time.Hour)
		ended := leading(t.Context(), l, func(context.Context) error { return nil }, core.Wait(0))
		time.Sleep(time.Hour)
		free()
		begin := time.Now()
		wantErr(t, <-ended, nil)
		if d := time.Since(begin); d > time.Second {
			t.Errorf("it led %v after the lock was free", d)
		}
	})
}

// A process that cannot ask for the lock must not look like a process that waits for its
// turn.
func TestLeadLogsWhyItCannotLeadAtOnceAndThenOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := logtest.Default(t).String
		store := memstore.New()
		l := newLocker(t, store)
		store.Intercept(func(memstore.Request) memstore.Fault {
			return memstore.Fault{Err: fmt.Errorf("%w: WRONGPASS", core.ErrUnavailable)}
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := leading(ctx, l, func(context.Context) error { return nil })
		synctest.Wait()
		if n := strings.Count(text(), "WRONGPASS"); n != 1 {
			t.Errorf("%d lines after the first error, want 1:\n%s", n, text())
		}
		time.Sleep(5 * time.Minute)
		if n := strings.Count(text(), "WRONGPASS"); n < 4 || n > 6 {
			t.Errorf("%d lines in five minutes:\n%s", n, text())
		}
		cancel()
		wantErr(t, <-ended, context.Canceled)
	})
}
