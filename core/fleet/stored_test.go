package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/observe"
)

// stored are the locks of a store in memory, and a locker on it.
func stored(t *testing.T) (*fleet.Fleet, *memstore.Store, *core.Locker) {
	t.Helper()
	store := memstore.New()
	f, err := fleet.On(store, fleet.Logger(slog.New(slog.NewTextHandler(io.Discard, nil))))
	if err != nil {
		t.Fatal(err)
	}
	return f, store, lockerOn(t, store)
}

func lockerOn(t *testing.T, store core.Store) *core.Locker {
	t.Helper()
	l, err := core.New(store)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Second)
		defer cancel()
		_ = l.Close(ctx) // tests leave locks
	})
	return l
}

// keys are the keys of a list.
func keys(t *testing.T, f *fleet.Fleet, pattern string) (all []string) {
	t.Helper()
	for l, err := range f.Locks(t.Context(), pattern) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, l.Key)
	}
	return all
}

func TestTheLocksOfAnyStoreAreShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, store, locker := stored(t)
		lease, err := locker.Lock(t.Context(), "account/1")
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"account/12", "job"} {
			if _, err := locker.Lock(t.Context(), key, core.Shared()); err != nil {
				t.Fatal(err)
			}
		}
		other := lockerOn(t, store)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _, _ = other.Lock(ctx, "account/1") }()
		synctest.Wait()

		for pattern, want := range map[string][]string{
			"": {"account/1", "account/12", "job"}, "account/*": {"account/1", "account/12"}, "account/?": {"account/1"},
			"job": {"job"}, "none": nil, "*2": {"account/12"},
		} {
			if got := keys(t, f, pattern); !slices.Equal(got, want) {
				t.Errorf("the pattern %q lists %q; want %q", pattern, got, want)
			}
		}
		l, err := f.Inspect(t.Context(), "account/1")
		if err != nil {
			t.Fatal(err)
		}
		if l.Free() || l.Kind != fleet.Exclusive || l.Held != 1 || len(l.Holders) != 1 || len(l.Waiters) != 1 {
			t.Fatalf("the lock is %+v; want a holder and a waiter", l)
		}
		h := l.Holders[0]
		if h.Token != lease.Token() || h.Left <= 0 || h.Left > 30*time.Second || h.Whole || !strings.HasPrefix(h.Owner, h.Locker.ID+":") || h.Locker.ID == "" {
			t.Errorf("the holder is %+v; want the token %d", h, lease.Token())
		}
		if w := l.Waiters[0]; w.Locker.ID == "" || w.Locker.ID == h.Locker.ID || w.Kept {
			t.Errorf("the waiter is %+v", w)
		}
		if l, err := f.Inspect(t.Context(), "job"); err != nil || l.Kind != fleet.Places {
			t.Errorf("a shared lock is %+v, %v; want the kind %s", l, err, fleet.Places)
		}
		cancel()
	})
}

// asked is a store with a Check.
type asked struct {
	*memstore.Store
	found []string
}

func (s asked) Check(context.Context) ([]string, error) { return s.found, nil }

// A role that may not see all sessions is a safe role.
func TestAFactThatIsNotKnownIsANote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for text, safe := range map[string]bool{driver.NotKnown + "the sessions": true, "fsync is off": false} {
			f, err := fleet.On(asked{memstore.New(), []string{text}})
			if err != nil {
				t.Fatal(err)
			}
			r, err := f.Check(t.Context(), "")
			if err != nil || r.Safe() != safe || len(r.Unsafe)+len(r.Notes) != 1 {
				t.Errorf("with %q: %+v, %v; want safe %v and one sentence", text, r, err, safe)
			}
		}
	})
}

func TestAnOperatorReleasesAGrantOfAnyStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, store, locker := stored(t)
		lease, err := locker.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Release(t.Context(), "k", lease.Token()+1); !errors.Is(err, fleet.ErrNoGrant) {
			t.Errorf("with another token: %v; want %v", err, fleet.ErrNoGrant)
		}
		if err := lease.Check(t.Context()); err != nil {
			t.Fatalf("a release with another token took the lock: %v", err)
		}
		waited := make(chan error, 1)
		go func() { waited <- f.Wait(t.Context(), "k") }()
		synctest.Wait()
		if h, err := f.Release(t.Context(), "k", lease.Token()); err != nil || h.Token != lease.Token() {
			t.Fatalf("%+v, %v; want the grant", h, err)
		}
		if err := <-waited; err != nil {
			t.Errorf("Wait: %v; want the free lock", err)
		}
		select { // the next renewal finds it out
		case <-lease.Context().Done():
		case <-time.After(30 * time.Second):
			t.Error("the holder does not find out that it has lost the lock")
		}
		if next, err := lockerOn(t, store).TryLock(t.Context(), "k"); err != nil || next.Token() <= lease.Token() {
			t.Errorf("the next holder: %v, %v; want a greater token", next, err)
		}
	})
}

// The store has lost nothing, and no alert is to fire.
func TestAHolderOnAnyStoreLearnsThatAnOperatorHasReleasedItsLock(t *testing.T) {
	finds := map[string]func(context.Context, *core.Lease) error{
		"a renewal": func(_ context.Context, l *core.Lease) error { <-l.Context().Done(); return l.Err() },
		"a check":   func(ctx context.Context, l *core.Lease) error { return l.Check(ctx) },
		"a release": func(ctx context.Context, l *core.Lease) error { return l.Release(ctx) },
	}
	for kind, opts := range map[string][]core.Option{"exclusive": nil, "shared": {core.Shared()}, "permit": {core.Permits(2)}, "attentive": {core.Attentive()}} {
		for how, find := range finds {
			for since, next := range map[string][]core.Option{"is free": nil, "has another holder": {}, "has a permit": {core.Permits(2)}} {
				t.Run(kind+" by "+how+" that "+since, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						f, store, locker := stored(t)
						lost := make(chan core.Loss, 1)
						lease, err := locker.Lock(t.Context(), "k", append(opts, core.OnLost(func(l core.Loss) { lost <- l }))...)
						if err != nil {
							t.Fatal(err)
						}
						if _, err := f.Release(t.Context(), "k", lease.Token()); err != nil {
							t.Fatal(err)
						}
						if next != nil {
							if _, err := lockerOn(t, store).Lock(t.Context(), "k", next...); err != nil {
								t.Fatal(err)
							}
						}
						wantErr(t, find(t.Context(), lease), core.ErrLost)
						if got := <-lost; got.Reason != observe.LossRevoked {
							t.Errorf("the lock is lost as %q; expected is %q", got.Reason, observe.LossRevoked)
						}
					})
				})
			}
		}
	}
}

func TestTheTicketOfALockOnAnyStoreThatAnOperatorHasReleasedIsRevoked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, store, locker := stored(t)
		lease, err := locker.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		ticket, err := lease.HandOver(t.Context(), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		l, err := f.Inspect(t.Context(), "k")
		if err != nil || len(l.Holders) != 1 || !l.Holders[0].HandedOver {
			t.Fatalf("the lock is %+v, %v; expected is one that was handed over", l, err)
		}
		if _, err := f.Release(t.Context(), "k", l.Holders[0].Token); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Minute) // the message has waited in its queue
		_, err = lockerOn(t, store).TakeOver(t.Context(), ticket)
		wantErr(t, err, core.ErrTicketRevoked)
	})
}

func TestAnOperatorReleasesOnePlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, store, locker := stored(t)
		one, err := locker.Lock(t.Context(), "k", core.Shared())
		if err != nil {
			t.Fatal(err)
		}
		two, err := lockerOn(t, store).Lock(t.Context(), "k", core.Shared())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Release(t.Context(), "k", one.Token()); err != nil {
			t.Fatal(err)
		}
		if err := one.Check(t.Context()); !errors.Is(err, core.ErrLost) {
			t.Errorf("the released holder: %v; want %v", err, core.ErrLost)
		}
		if err := two.Check(t.Context()); err != nil {
			t.Errorf("the other holder: %v", err)
		}
	})
}

func TestAStoreSaysWhatItDoesNotHave(t *testing.T) {
	f, _, _ := stored(t)
	for _, err := range f.Lockers(t.Context()) {
		wantErr(t, err, fleet.ErrNotServed)
	}
	_, err := f.ReleaseKept(t.Context(), "k")
	wantErr(t, err, fleet.ErrNotServed)
	_, err = fleet.On(struct{ driver.Store }{memstore.New()})
	wantErr(t, err, driver.ErrConfig)
}

// readOnly is a store that says that it only reads, and refuses locks.
type readOnly struct {
	*memstore.Store
	unsafe []string
}

var errReads = errors.New("it only reads")

func (s readOnly) Check(context.Context) ([]string, error) { return s.unsafe, nil }

func (s readOnly) Acquire(context.Context, driver.AcquireRequest) (driver.Reply, error) {
	return driver.Reply{}, errReads
}

func TestALockThatIsRefusedHidesNoUnsafeSetting(t *testing.T) {
	for _, unsafe := range [][]string{nil, {"transactions only read"}} {
		f, err := fleet.On(readOnly{memstore.New(), unsafe})
		if err != nil {
			t.Fatal(err)
		}
		r, err := f.Check(t.Context(), "")
		if unsafe == nil {
			if !errors.Is(err, errReads) {
				t.Errorf("nothing is unsafe: %v; want the error of the store", err)
			}
			continue
		}
		if err != nil || !slices.Equal(r.Unsafe, unsafe) || len(r.Servers) != 1 || !errors.Is(r.Servers[0].Err, errReads) || r.Safe() {
			t.Errorf("%+v, %v; want the unsafe setting, and the error of the store at its server", r, err)
		}
	}
}

// answered is an error that PostgreSQL has sent.
type answered struct{ error }

func (answered) SQLState() string { return "42501" }

// A refusal by the server is an outcome: an operator has nothing to find out.
func TestAReleaseIsOfUnknownOutcomeOnlyWithoutAnAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		fault   error
		unknown bool
	}{
		"no answer":              {fmt.Errorf("%w: i/o timeout", driver.ErrUnavailable), true},
		"a refusal":              {fmt.Errorf("%w: %w", driver.ErrUnavailable, answered{errors.New("permission denied")}), false},
		"a refusal by a cluster": {fmt.Errorf("%w: %w", driver.ErrUnavailable, driver.ErrRefused), false},
	} {
		t.Run(name, func(t *testing.T) {
			f, store, _ := stored(t)
			rep, err := store.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "a:1", TTL: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Fault{Err: c.fault} })
			if _, err = f.Release(t.Context(), "k", rep.Token); !errors.Is(err, c.fault) || errors.Is(err, fleet.ErrOutcomeUnknown) != c.unknown {
				t.Errorf("%v; want the error of the store, and unknown %v", err, c.unknown)
			}
		})
	}
}
