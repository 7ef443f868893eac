package casstore_test

import (
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/casstore/castest"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/observe"
)

// far makes a store on a server that takes some time for its answers.
func far(t *testing.T, trip time.Duration) *casstore.Store {
	return open(t, &castest.Link{Server: castest.NewMemory(), Meet: func(*casstore.Txn) castest.Fault {
		return castest.Fault{Before: trip / 2, After: trip / 2}
	}}, casstore.Timeout(250*time.Millisecond), casstore.Logger(slog.New(slog.DiscardHandler)))
}

// Each answer takes longer than a try waits at first.
func TestAServerThatAnswersSlowlyGrantsLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const trip = 300 * time.Millisecond
		store := far(t, trip)
		for n, most := range []time.Duration{3 * trip, trip, trip} { // then it is known how long an answer takes
			begin := time.Now()
			reply, err := store.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "o", TTL: lease})
			if err != nil || !reply.Granted {
				t.Fatalf("lock %d: %+v, %v after %v; want a grant", n, reply, err, time.Since(begin))
			}
			if took := time.Since(begin); took > most {
				t.Errorf("lock %d took %v; want %v at most", n, took, most)
			}
			if _, err := store.Release(t.Context(), driver.ReleaseRequest{Key: "k", Owner: "o", TTL: lease}); err != nil {
				t.Errorf("release %d: %v", n, err)
			}
		}
	})
}

// A server that was quick answers slowly from some moment on.
func TestAServerThatHasBecomeSlowGrantsLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		trip := new(atomic.Int64)
		store := open(t, &castest.Link{Server: castest.NewMemory(), Meet: func(*casstore.Txn) castest.Fault {
			return castest.Fault{After: time.Duration(trip.Load())}
		}}, casstore.Timeout(250*time.Millisecond), casstore.Logger(slog.New(slog.DiscardHandler)))
		for _, took := range []time.Duration{time.Millisecond, 400 * time.Millisecond, 400 * time.Millisecond} {
			trip.Store(int64(took))
			if reply, err := store.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "o", TTL: lease}); err != nil || !reply.Granted {
				t.Errorf("answers take %v: %+v, %v; want a grant", took, reply, err)
			}
			if _, err := store.Release(t.Context(), driver.ReleaseRequest{Key: "k", Owner: "o", TTL: lease}); err != nil {
				t.Errorf("answers take %v: %v", took, err)
			}
		}
	})
}

// A try that waits for a leader that has died must not outlast the election by much.
func TestALockFollowsSoonAfterAnElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dead atomic.Bool
		store := open(t, &castest.Link{Server: castest.NewMemory(), Meet: func(*casstore.Txn) castest.Fault {
			return castest.Fault{Before: time.Millisecond, After: time.Millisecond, Lost: dead.Load()}
		}}, casstore.Timeout(250*time.Millisecond), casstore.Logger(slog.New(slog.DiscardHandler)))
		lock := func() {
			t.Helper()
			reply, err := store.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "o", TTL: lease})
			if err != nil || !reply.Granted {
				t.Fatalf("%+v, %v; want a grant", reply, err)
			}
		}
		lock()
		if _, err := store.Release(t.Context(), driver.ReleaseRequest{Key: "k", Owner: "o", TTL: lease}); err != nil {
			t.Fatal(err)
		}
		for _, election := range []time.Duration{time.Second, 1300 * time.Millisecond, 1600 * time.Millisecond} {
			dead.Store(true)
			time.AfterFunc(election, func() { dead.Store(false) })
			begin := time.Now()
			lock()
			if after := time.Since(begin) - election; after > 600*time.Millisecond {
				t.Errorf("the lock came %v after an election of %v; want half a second at most", after, election)
			}
			if _, err := store.Release(t.Context(), driver.ReleaseRequest{Key: "k", Owner: "o", TTL: lease}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestTheErrorOfAServerThatIsTooSlowNamesTheOption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, err := far(t, time.Minute).Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "o", TTL: lease})
		if text := observe.RootCause(err).Error(); !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(text, "raise casstore.Timeout, which is 250ms") {
			t.Errorf("%v; want ErrUnavailable, and the name of the option in the root cause", err)
		}
	})
}

// A lease without an end is no lease of a millisecond.
func TestALeaseWithoutEndDoesNotOverflow(t *testing.T) {
	const forever = time.Duration(1<<63 - 1)
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		store, other := open(t, server), open(t, server)
		ask := driver.AcquireRequest{Key: "k", Owner: "o", TTL: forever}
		if reply, err := store.Acquire(t.Context(), ask); err != nil || !reply.Granted {
			t.Fatalf("Acquire returns %+v, %v; want a grant", reply, err)
		}
		time.Sleep(24 * time.Hour)
		ask.Owner = "other"
		if reply, err := other.Acquire(t.Context(), ask); err != nil || reply.Granted || reply.TTL < 365*24*time.Hour {
			t.Errorf("a day after a grant without end: %+v, %v; want that the lock is held for years", reply, err)
		}
	})
}
