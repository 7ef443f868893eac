package lock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	_ "github.com/interlock-go/interlock/internal/bubble"
)

// reaped is a store that decides how long its releases take and how they end.
type reaped struct {
	driver.Store
	mu     sync.Mutex
	random *rand.Rand // nil: each release takes a second, and succeeds unless down
	busy   int
	most   int
	ever   map[string]bool // owners that were released
	down   bool
}

func (s *reaped) Release(_ context.Context, req driver.ReleaseRequest) (found driver.Waiting, _ error) {
	s.mu.Lock()
	s.busy++
	s.most = max(s.most, s.busy)
	s.ever[req.Owner] = true
	took, n, err := time.Second, 3, error(nil)
	if s.random != nil {
		took, n = time.Duration(s.random.IntN(2000))*time.Millisecond, s.random.IntN(4)
	}
	switch {
	case s.down || n == 0:
		err = errors.New("no answer")
	case n == 1:
		err = driver.ErrNotOwner
	}
	s.mu.Unlock()
	time.Sleep(took)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy--
	return driver.Waiting{}, err
}

func TestTheReaperReleasesEveryOrphanAndForgetsIt(t *testing.T) {
	for seed := range uint64(seeds / 100) {
		synctest.Test(t, func(t *testing.T) {
			s := &reaped{random: rand.New(rand.NewPCG(seed, 1)), ever: map[string]bool{}}
			l := NewTable(s, 20*time.Millisecond, 10_000)
			r := &l.reaper
			r.first.most, r.again.most, r.most = 8, 3, 200
			random := rand.New(rand.NewPCG(seed, 2))
			added := 0
			for i := range 2000 {
				owner := fmt.Sprint(random.IntN(100), "/", i/1000)
				switch random.IntN(5) {
				case 0:
					r.reap("k", owner)
				case 1:
					time.Sleep(time.Duration(random.IntN(500)) * time.Millisecond)
				default:
					o := &orphan{key: "k", owner: owner, ttl: time.Duration(1+random.IntN(60)) * time.Minute}
					if random.IntN(4) == 0 {
						o.from = l.Clock.Now().Add(time.Minute)
					}
					r.add(o)
					added++
				}
				s.mu.Lock()
				s.down = i%500 > 400
				s.mu.Unlock()
				checkReaper(t, r)
			}
			time.Sleep(2 * time.Hour)
			checkReaper(t, r)
			if n := len(r.orphans); n != 0 {
				t.Errorf("seed %d: %d orphans are left", seed, n)
			}
			if len(s.ever) < 190 {
				t.Errorf("seed %d: %d of %d owners were released", seed, len(s.ever), added)
			}
			if s.most > 8+3 {
				t.Errorf("seed %d: %d releases at once", seed, s.most)
			}
			if err := l.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A process that ends right after a refused request must not keep the lock for a whole lease. The
// reaper's goroutine never runs here: Close has to send the release.
func TestCloseReleasesOrphansThatTheReaperHasNotReached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &reaped{ever: map[string]bool{}}
		l := NewTable(s, 20*time.Millisecond, 10_000)
		r := &l.reaper
		r.timers.Go = func(func()) {}
		r.first.most = 3
		for i := range 10 {
			r.add(&orphan{key: "k", owner: fmt.Sprint("due/", i), ttl: 30 * time.Second})
		}
		r.add(&orphan{key: "k", owner: "not due", ttl: 30 * time.Second, from: l.Clock.Now().Add(time.Minute)})
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(s.ever) != 10 || s.ever["not due"] || s.most != 3 || s.busy != 0 {
			t.Errorf("Close returned with the releases %v, at most %d at once and %d under way; want those of 10 due owners, 3 at once, none under way",
				s.ever, s.most, s.busy)
		}
		r.add(&orphan{key: "k", owner: "late", ttl: 30 * time.Second}) // of a request that was under way
		l.life.work.wait(t.Context())
		if !s.ever["late"] {
			t.Error("an owner that was added after Close was not released")
		}
		if n := r.first.busy + r.again.busy; n != 0 {
			t.Errorf("%d releases are counted after the end; want none", n)
		}
	})
}

// A server that hangs must not keep Close for all rounds of releases.
func TestCloseSendsNoMoreReleasesToAServerThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &reaped{ever: map[string]bool{}, down: true}
		l := NewTable(s, 20*time.Millisecond, 10_000)
		l.reaper.timers.Go = func(func()) {}
		l.reaper.first.most = 3
		for i := range 10 {
			l.reaper.add(&orphan{key: "k", owner: fmt.Sprint(i), ttl: 30 * time.Second})
		}
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(s.ever) != 3 || s.busy != 0 {
			t.Errorf("%d releases were sent to a server that does not answer, %d are under way; want the first 3, none under way", len(s.ever), s.busy)
		}
	})
}

// checkReaper looks for what must hold between two events.
func checkReaper(t *testing.T, r *reaper) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	lists := map[*orphanList]int{&r.first.due: 0, &r.again.due: 0, &r.paused: 0}
	releasing := 0
	for owner, o := range r.orphans {
		if o.owner != owner {
			t.Fatalf("%s is noted as %s", o.owner, owner)
		}
		if o.list != nil {
			lists[o.list]++
		}
		if o.releasing {
			releasing++
			if o.list != nil {
				t.Fatal("an orphan whose release is under way is in a list")
			}
		}
		if (o.list == &r.paused || o.list == &r.again.due) && !o.failed || o.list == &r.first.due && o.failed {
			t.Fatal("an orphan is in the wrong list")
		}
	}
	if len(lists) != 3 {
		t.Fatal("an orphan is in a list of no reaper")
	}
	if n := r.first.busy + r.again.busy; n < releasing || r.first.busy > r.first.most || r.again.busy > r.again.most {
		t.Fatalf("%d and %d releases are counted, %d are under way", r.first.busy, r.again.busy, releasing)
	}
	for list, n := range lists {
		forth, back := 0, 0
		for o := list.first; o != nil; o = o.after {
			forth++
		}
		for o := list.last; o != nil; o = o.before {
			back++
		}
		if forth != n || back != n {
			t.Fatalf("a list has %d orphans from the front and %d from the back, want %d", forth, back, n)
		}
	}
}
