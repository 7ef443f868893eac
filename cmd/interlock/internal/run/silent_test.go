package run

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/casstore/castest"
	"github.com/interlock-go/interlock/core/fleet"
)

// host is a process on a store without a clock.
type host struct {
	*core.Locker
	store *casstore.Store
	cut   chan struct{} // closed: the process has died
}

func hostOf(t *testing.T, server *castest.Memory) *host {
	t.Helper()
	h := &host{cut: make(chan struct{})}
	var err error
	h.store, err = casstore.New(&castest.Link{Server: server, Meet: func(*casstore.Txn) castest.Fault {
		f := castest.Fault{Before: time.Millisecond, After: time.Millisecond}
		select {
		case <-h.cut:
			f.Lost = true
		default:
		}
		return f
	}})
	if err != nil {
		t.Fatal(err)
	}
	if h.Locker, err = core.New(h.store, core.Watchdog(defaultTTL)); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *host) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = h.Close(ctx)
	_ = h.store.Close()
}

// askOnce starts a new process that runs the command with -wait 0.
func askOnce(t *testing.T, server *castest.Memory) (took time.Duration, said []string, err error) {
	t.Helper()
	h := hostOf(t, server)
	defer h.close()
	f, err := fleet.On(h.store)
	if err != nil {
		t.Fatal(err)
	}
	streams := Streams{Look: func(ctx context.Context) (held Held, err error) {
		l, err := f.Inspect(ctx, "k")
		if held.Silent, _ = l.Silent(); l.Held > 0 {
			held.By = l.Holders[0].Owner
		}
		return held, err
	}}
	began := time.Now()
	lease, err := (&Command{key: "k", ttl: defaultTTL}).take(t.Context(), h.Locker, streams, logger{func(line string) { said = append(said, line) }, "k"})
	if took = time.Since(began); err == nil {
		err = lease.Release(t.Context())
	}
	return took, said, err
}

// On a store without a clock a cron job with -wait 0 never ran again after a run was killed: no process stayed for so
// long that it could tell the dead holder from a living one.
func TestARunThatDoesNotWaitHasTheLockOfADeadOneAfterItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		wrapper := hostOf(t, server)
		defer wrapper.close()
		if _, err := wrapper.Lock(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute) // it renews
		if took, said, err := askOnce(t, server); !errors.Is(err, core.ErrHeld) || took > time.Second || len(said) > 0 {
			t.Errorf("beside a holder that lives: %v after %v, and it said %q; want ErrHeld at once", err, took, said)
		}
		close(wrapper.cut)
		time.Sleep(time.Second)
		if took, _, err := askOnce(t, server); !errors.Is(err, core.ErrHeld) || took > time.Second {
			t.Errorf("a second after the holder died: %v after %v; want ErrHeld at once", err, took)
		}
		time.Sleep(2 * time.Minute)
		took, said, err := askOnce(t, server)
		if err != nil || took < defaultTTL || took > defaultTTL+silentMore {
			t.Errorf("two minutes after the holder died: %v after %v; want the lock after its lease of %v", err, took, defaultTTL)
		}
		if len(said) != 1 || !strings.Contains(said[0], "gives no sign of life") {
			t.Errorf("it said %q; want that the holder gives no sign of life", said)
		}
	})
}

// A process that had another lock a while ago gives its next sign of life with its first renewal.
func TestARunThatDoesNotWaitStaysUntilTheHolderGivesASignOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		holder := hostOf(t, server)
		defer holder.close()
		before, err := holder.Lock(t.Context(), "before")
		if err == nil {
			err = before.Release(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		if _, err := holder.Lock(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		took, said, err := askOnce(t, server)
		if !errors.Is(err, core.ErrHeld) || took > defaultTTL/2 {
			t.Errorf("%v after %v, and it said %q; want ErrHeld with the first renewal", err, took, said)
		}
		t.Logf("it took %v and said %q", took, said)
	})
}

// A lock without a holder was kept until a process waited for it: for those in line, which had died.
func TestARunThatDoesNotWaitHasALockThatIsKeptForTheDead(t *testing.T) {
	for name, offers := range map[string]bool{"kept": false, "offered": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := castest.NewMemory()
				holder := hostOf(t, server)
				defer holder.close()
				lease, err := holder.Lock(t.Context(), "k")
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				for range 4 { // the lock is kept for as many
					dead := hostOf(t, server)
					defer dead.close()
					if offers { // from its second wait on it takes offers
						short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
						_, _ = dead.Lock(short, "k")
						cancel()
					}
					go func() { _, _ = dead.Lock(ctx, "k") }()
					time.Sleep(100 * time.Millisecond)
					close(dead.cut)
				}
				if err := lease.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Hour)
				if took, said, err := askOnce(t, server); err != nil || took > 10*time.Second {
					t.Errorf("%v after %v, and it said %q; want the lock when those that have died have had their turns", err, took, said)
				}
			})
		})
	}
}

// A process that only looks finds out, too.
func TestAWaitForAFreeLockEndsAfterTheLeaseOfADeadHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		wrapper, eye := hostOf(t, server), hostOf(t, server)
		defer wrapper.close()
		defer eye.close()
		if _, err := wrapper.Lock(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		f, err := fleet.On(eye.store)
		if err != nil {
			t.Fatal(err)
		}
		died := make(chan time.Time, 1)
		time.AfterFunc(5*time.Minute, func() { close(wrapper.cut); died <- time.Now() })
		if err := f.Wait(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		select {
		case at := <-died:
			if d := time.Since(at); d > defaultTTL+time.Second {
				t.Errorf("the lock counted as free %v after its holder died; want its lease of %v", d, defaultTTL)
			}
		default:
			t.Error("the lock counted as free while its holder lived")
		}
	})
}

// A run with -at-least leaves its lock to the store, which has no clock to end it by: a run that does not wait later
// has it all the same, after it has stayed.
func TestARunThatDoesNotWaitHasALockThatWasKeptAtLeast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		first := hostOf(t, server)
		defer first.close()
		lease, err := first.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		kept := &Command{key: "k", ttl: defaultTTL, least: time.Minute}
		if err := kept.leave(t.Context(), lease, time.Now(), logger{func(line string) { t.Errorf("it said %q", line) }, "k"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		if took, _, err := askOnce(t, server); !errors.Is(err, core.ErrHeld) || took > time.Minute {
			t.Errorf("half a minute later: %v after %v; want ErrHeld", err, took)
		}
		time.Sleep(24 * time.Hour)
		took, said, err := askOnce(t, server)
		t.Logf("it took %v and said %q", took, said)
		if err != nil || took > time.Minute+silentMore {
			t.Errorf("a day later: %v after %v; want the lock after a minute at most", err, took)
		}
	})
}
