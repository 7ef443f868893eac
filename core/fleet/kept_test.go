//go:build integration

package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/internal/redistest"
)

// dead is the id of a locker that has died.
func dead(n int) string { return fmt.Sprintf("%032d", n) }

// keep has a release keep a lock for four lockers that have died, each of which may take a second
// to answer. A fifth waits after them. As after a clock that was set back, the key stays for an
// hour, until a process asks for the lock.
func (w *world) keep(key string) {
	w.t.Helper()
	a := w.process()
	redistest.Eventually(w.t, w.Patience(), func(ctx context.Context) error {
		lease := w.lock(a, key)
		var q []string
		for i := range 5 {
			q = append(q, dead(i)+"~q")
		}
		if err := w.rdb.HSet(ctx, w.name(key), "q", strings.Join(q, ",")).Err(); err != nil {
			return err
		}
		if err := lease.Release(ctx); err != nil {
			return err
		}
		return w.extend(ctx, key)
	})
}

func (w *world) extend(ctx context.Context, key string) error {
	there, err := w.rdb.PExpire(ctx, w.name(key), time.Hour).Result()
	if err == nil && !there {
		err = errors.New("the machine stood still, and the lock is kept no more")
	}
	return err
}

func (w *world) testKept() {
	f, ctx := w.fleet(), w.t.Context()
	w.keep("k")
	l, err := f.Inspect(ctx, "k")
	if err != nil || l.Held != 0 || l.Kind != "" || l.Free() || l.Kept != 4*time.Second || len(l.Waiters) != 5 {
		w.t.Fatalf("%+v, %v; want a lock that is kept for 4 s", l, err)
	}
	for i, waiter := range l.Waiters {
		if waiter.Locker.ID != dead(i) || waiter.Kept != (i < 4) {
			w.t.Errorf("the waiter %d is %+v", i+1, waiter)
		}
	}
	for _, pattern := range []string{"", "k"} {
		if l := w.list(f, pattern)["k"]; l.Kept != 4*time.Second {
			w.t.Errorf("the list of the pattern %q has %+v", pattern, l)
		}
	}
	enough, cancel := context.WithTimeoutCause(ctx, 200*time.Millisecond, errors.New("enough"))
	defer cancel()
	wantErr(w.t, f.Wait(enough, "k"), context.Cause(enough))
	if _, err := f.Release(ctx, "k", l.Fence); !errors.Is(err, fleet.ErrNoGrant) {
		w.t.Errorf("the last grant was released again: %v", err)
	}

	newcomer := w.process()
	redistest.Eventually(w.t, w.Patience(), func(ctx context.Context) error {
		_, err := newcomer.TryLock(ctx, "k")
		if !errors.Is(err, core.ErrHeld) {
			return fmt.Errorf("the lock that is kept was not refused: %w", err)
		}
		return w.extend(ctx, "k")
	})
	done := make(chan error, 1)
	go func() { done <- f.Wait(ctx, "k") }()
	w.looks()
	if len(done) > 0 {
		w.t.Errorf("wait returned while the lock is kept: %v", <-done)
	}
	if l, err := f.ReleaseKept(ctx, "k"); err != nil || l.Kept == 0 || len(l.Waiters) < 5 {
		w.t.Fatalf("ReleaseKept returns %+v, %v; want the kept lock and its waiters", l, err)
	}
	wantErr(w.t, <-done, nil)
	if l, err := f.Inspect(ctx, "k"); err != nil || !l.Free() || len(w.list(f, "")) != 0 {
		w.t.Errorf("%+v, %v; want a free lock", l, err)
	}

	if _, err := f.ReleaseKept(ctx, "k"); !errors.Is(err, fleet.ErrNotKept) {
		w.t.Errorf("a free lock: %v", err)
	}
	lease, err := newcomer.TryLock(ctx, "k")
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := f.ReleaseKept(ctx, "k"); !errors.Is(err, fleet.ErrNotKept) {
		w.t.Errorf("a lock that is held: %v", err)
	}
	wantErr(w.t, lease.Check(ctx), nil)
}

// Without a list each process asks at once, and does not wait for the turns of those before it.
func TestTheEndOfAKeptLockCallsAllThatWait(t *testing.T) {
	t.Parallel()
	w := common(t)
	w.keep("k")
	sub := w.rdb.Subscribe(t.Context(), w.prefix+":wanted:"+dead(1))
	defer sub.Close()
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := w.fleet().ReleaseKept(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	m, err := sub.ReceiveMessage(t.Context())
	if want := ": " + w.name("k"); err != nil || m.Payload != want {
		t.Errorf("%+v, %v; want %q, a call without a list", m, err, want)
	}
}

// The key of an offer stays longer than the offer, too.
func TestAnOfferIsNotShownForLongerThanItWasMade(t *testing.T) {
	t.Parallel()
	w := common(t)
	w.rdb.HSet(t.Context(), w.name("k"), "r", 3000, "q", dead(1)+"~A", "offer", dead(1)+":5")
	if err := w.extend(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	l, err := w.fleet().Inspect(t.Context(), "k")
	if err != nil || l.Held != 1 || l.Kept != 0 || l.Holders[0].Token != 5 || l.Holders[0].Left != 3*time.Second {
		t.Errorf("%+v, %v; want an offer of 3 s", l, err)
	}
}
