package core_test

import (
	"context"
	"errors"
	"iter"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
)

// listing is a store that keeps entries about lockers.
type listing struct {
	*memstore.Store
	fail  error
	hangs bool // until the context of the announcement ends

	mu        sync.Mutex
	at        []time.Time
	last      driver.Announcement
	withdrawn []string
}

func (s *listing) Announce(ctx context.Context, a driver.Announcement) error {
	s.mu.Lock()
	s.at, s.last = append(s.at, time.Now()), a
	s.mu.Unlock()
	if s.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.fail
}

func (*listing) Entries(context.Context) iter.Seq2[driver.Entry, error] { return nil }

func (s *listing) Withdraw(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.withdrawn = append(s.withdrawn, id)
	return s.fail
}

// announced returns how often, and withdrawn which.
func (s *listing) announced() (n int, withdrawn []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.at), s.withdrawn
}

// listed runs a test with a locker on such a store, in a bubble.
func listed(t *testing.T, opts []core.LockerOption, test func(t *testing.T, s *listing, l *core.Locker)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &listing{Store: memstore.New()}
		l, err := core.New(s, opts...)
		if err != nil {
			t.Fatal(err)
		}
		test(t, s, l)
		if err := l.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

func TestALockerIsListedWhileItIsUsed(t *testing.T) {
	listed(t, []core.LockerOption{core.Service("bank", "v1.2.3")}, func(t *testing.T, s *listing, l *core.Locker) {
		made := time.Now()
		time.Sleep(time.Hour)
		if n, _ := s.announced(); n != 0 {
			t.Errorf("a locker that was never used announced itself %d times", n)
		}
		lease := held(t, l, t.Context(), "k")
		began := time.Now()
		time.Sleep(10 * time.Minute)
		release(t, lease)
		n, _ := s.announced()
		if n < 28 || n > 31 {
			t.Errorf("announced %d times in 10 minutes; want once in 20 s", n)
		}
		for i, at := range s.at[1:] {
			if gap := at.Sub(s.at[i]); gap < 20*time.Second || gap >= 30*time.Second {
				t.Errorf("announcement %d came %v after the one before it", i+1, gap)
			}
		}
		if first := s.at[0].Sub(began); first > 2*time.Second {
			t.Errorf("the first announcement came %v after the first use", first)
		}
		a := s.last
		if a.Host == "" || a.PID == 0 || a.Service != "bank" || a.Version != "v1.2.3" || a.Protocol != driver.Protocol ||
			!a.Started.Equal(made) || a.TTL != time.Minute || len(a.ID) != 32 {
			t.Errorf("%+v", a)
		}

		// An unused locker is not listed, and does nothing.
		time.Sleep(time.Hour)
		if again, _ := s.announced(); again != n {
			t.Errorf("an idle locker announced itself %d times in an hour", again-n)
		}
		release(t, held(t, l, t.Context(), "k"))
		time.Sleep(2 * time.Second)
		if again, _ := s.announced(); again != n+1 {
			t.Errorf("%d announcements after one more use; want %d", again, n+1)
		}
		if _, withdrawn := s.announced(); len(withdrawn) != 0 {
			t.Errorf("withdrawn before Close: %q", withdrawn)
		}
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if _, withdrawn := s.announced(); len(withdrawn) != 1 || withdrawn[0] != a.ID {
			t.Errorf("Close withdrew %q; want the entry %q", withdrawn, a.ID)
		}
	})
}

func TestAWaitingLockerIsListed(t *testing.T) {
	listed(t, nil, func(t *testing.T, s *listing, l *core.Locker) {
		defer s.Take("k", time.Hour)()
		if _, err := l.Lock(t.Context(), "k", core.Wait(time.Minute)); !errors.Is(err, core.ErrHeld) {
			t.Fatal(err)
		}
		if n, _ := s.announced(); n != 3 {
			t.Errorf("announced %d times in a minute of waiting; want 3", n)
		}
	})
}

func TestACallerDoesNotWaitForTheEntry(t *testing.T) {
	listed(t, nil, func(t *testing.T, s *listing, l *core.Locker) {
		s.hangs = true
		lease := held(t, l, t.Context(), "k")
		time.Sleep(1500 * time.Millisecond)
		if n, _ := s.announced(); n != 1 {
			t.Fatalf("%d announcements", n)
		}
		began := time.Now()
		release(t, held(t, l, t.Context(), "other"))
		release(t, lease)
		if took := time.Since(began); took > 0 {
			t.Errorf("a pair took %v while an announcement hangs", took)
		}
	})
}

func TestAnEntryThatCannotBeWrittenHarmsNothing(t *testing.T) {
	listed(t, nil, func(t *testing.T, s *listing, l *core.Locker) {
		s.fail = core.ErrUnavailable
		lease := held(t, l, t.Context(), "k")
		time.Sleep(time.Minute)
		if n, _ := s.announced(); n != 3 {
			t.Errorf("%d tries in a minute; want 3", n)
		}
		release(t, lease)
	})
}

func TestAnUnlistedLockerWritesNothing(t *testing.T) {
	listed(t, []core.LockerOption{core.Unlisted()}, func(t *testing.T, s *listing, l *core.Locker) {
		lease := held(t, l, t.Context(), "k")
		time.Sleep(time.Minute)
		release(t, lease)
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if n, withdrawn := s.announced(); n != 0 || len(withdrawn) != 0 {
			t.Errorf("%d announcements, withdrawn %q", n, withdrawn)
		}
	})
}

// The locks of a closed locker still show the name of its process.
func TestTheEntryOutlivesACloseThatLeavesLocksBehind(t *testing.T) {
	listed(t, nil, func(t *testing.T, s *listing, l *core.Locker) {
		lease := held(t, l, t.Context(), "k")
		time.Sleep(2 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := l.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		wantErr(t, context.Cause(lease.Context()), core.ErrClosed)
		if _, withdrawn := s.announced(); len(withdrawn) != 0 {
			t.Errorf("withdrawn: %q", withdrawn)
		}
		n, _ := s.announced()
		time.Sleep(time.Minute)
		if again, _ := s.announced(); again != n {
			t.Error("a closed locker announces itself")
		}
	})
}

func TestTheNamesOfAServiceAreBounded(t *testing.T) {
	long := strings.Repeat("x", 129)
	for _, o := range []core.LockerOption{core.Service(long, ""), core.Service("", long)} {
		if _, err := core.New(memstore.New(), o); !errors.Is(err, core.ErrConfig) {
			t.Errorf("%v; want ErrConfig", err)
		}
	}
	if _, err := core.New(memstore.New(), core.Service(long[1:], long[1:])); err != nil {
		t.Error(err)
	}
}
