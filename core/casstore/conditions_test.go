package casstore_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/casstore/castest"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
)

const lease = 30 * time.Second

// side is one process of a test that has two.
type side struct {
	t     *testing.T
	name  string
	store *casstore.Store
	link  *bent
}

// bent is a link with a mutant between it and its store.
type bent struct {
	castest.Link
	// before and after are the delays of the next transactions and their answers.
	before, after atomic.Int64
	// strip, unless nil, has conditions left out.
	strip func(casstore.Condition) bool
	// early, unless nil, is called when an answer comes, with when its request was sent.
	early func(sent time.Time)
}

func (b *bent) Commit(ctx context.Context, txn casstore.Txn) (casstore.Answer, error) {
	var left []casstore.Condition
	for _, c := range txn.If {
		if b.strip == nil || !b.strip(c) {
			left = append(left, c)
		}
	}
	txn.If = left
	sent := time.Now()
	answer, err := b.Link.Commit(ctx, txn)
	if b.early != nil {
		b.early(sent)
	}
	return answer, err
}

// sides are two processes on one server. They use no watch, so that each knows only the
// answers to its own requests.
func sides(t *testing.T) (server *castest.Memory, a, b *side) {
	server = castest.NewMemory()
	begin := func(name string) *side {
		s := &side{t: t, name: name, link: &bent{}}
		s.link.Link = castest.Link{Server: server, Meet: func(*casstore.Txn) castest.Fault {
			return castest.Fault{Before: time.Duration(s.link.before.Load()), After: time.Duration(s.link.after.Load())}
		}}
		s.store = open(t, s.link, casstore.Timeout(10*lease))
		return s
	}
	return server, begin("a"), begin("b")
}

// try asks for the lock.
func (s *side) try() driver.Reply {
	s.t.Helper()
	reply, err := s.store.Acquire(s.t.Context(), driver.AcquireRequest{Key: "k", Owner: s.name, TTL: lease})
	if err != nil {
		s.t.Fatal(err)
	}
	return reply
}

// renew renews the lock, which must succeed, and returns until when it can be trusted.
func (s *side) renew() time.Time {
	s.t.Helper()
	sent := time.Now()
	s.store.Renew(s.t.Context(), []driver.Renewal{{Key: "k", Owner: s.name, TTL: lease}}, func(_ int, _ bool, err error) {
		if err != nil {
			s.t.Error(err)
		}
	})
	return sent.Add(lease - clock.Drift(lease))
}

func (s *side) releases(owner string) error {
	_, err := s.store.Release(s.t.Context(), driver.ReleaseRequest{Key: "k", Owner: owner, TTL: lease})
	return err
}

// is makes a condition on some names a mutant leaves out.
func is(part string, absent bool) func(casstore.Condition) bool {
	return func(c casstore.Condition) bool {
		return strings.Contains(c.Name, part) && absent == (c.Revision == casstore.Revision{})
	}
}

// both runs a scenario with the store, where nothing may go wrong, and with a mutant of the
// store, where something must: so the scenario needs the part that the mutant leaves out.
func both(t *testing.T, scenario func(t *testing.T, mutant bool) (wrong bool)) {
	t.Helper()
	for _, mutant := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			if wrong := scenario(t, mutant); wrong != mutant {
				t.Errorf("mutant %v, and wrong %v", mutant, wrong)
			}
		})
	}
}

// The last look at the holder was answered late: it has renewed since.
func TestATakeOverComparesTheBeat(t *testing.T) {
	for name, absent := range map[string]bool{"a beat": false, "no beat": true} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, mutant bool) bool {
				server, a, b := sides(t)
				a.try()
				if absent {
					for _, e := range server.Entries() {
						if strings.Contains(e.Name, "/:beat/") {
							_, _ = server.Commit(t.Context(), casstore.Txn{Then: []casstore.Op{{Name: e.Name, Delete: true}}})
						}
					}
				}
				if mutant {
					b.link.strip = is("/:beat/", absent)
				}
				b.try()
				time.Sleep(lease / 2)
				b.link.after.Store(int64(lease * 6 / 10)) // it is read now, and known when the lease has ended
				answered := make(chan driver.Reply, 1)
				go func() { answered <- b.try() }()
				time.Sleep(lease / 10)
				b.link.after.Store(int64(0))
				trusted := a.renew()
				reply := <-answered
				return reply.Granted && time.Now().Before(trusted)
			})
		})
	}
}

// A late take-over finds another holder than the silent one.
func TestATakeOverComparesTheLock(t *testing.T) {
	both(t, func(t *testing.T, mutant bool) bool {
		_, a, b := sides(t)
		a.try()
		b.try()
		if mutant {
			b.link.strip = is("/lock", false)
		}
		time.Sleep(lease / 2)
		b.link.after.Store(int64(lease * 6 / 10))
		answered := make(chan driver.Reply, 1)
		go func() { answered <- b.try() }()
		time.Sleep(lease / 10)
		b.link.after.Store(int64(0))
		if err := a.releases("a"); err != nil {
			t.Error(err)
		}
		c := &side{t: t, name: "c", store: a.store}
		if !c.try().Granted {
			t.Error("the lock is not free")
		}
		reply := <-answered
		return reply.Granted
	})
}

// The first look at the holder took long to arrive, and the holder has renewed meanwhile.
func TestATakeOverCountsFromTheAnswer(t *testing.T) {
	both(t, func(t *testing.T, mutant bool) bool {
		_, a, b := sides(t)
		if mutant {
			var sent atomic.Pointer[time.Time]
			b.link.early = func(s time.Time) { sent.Store(&s) }
			casstore.SetClock(b.store, func() time.Time {
				if s := sent.Swap(nil); s != nil {
					return *s
				}
				return time.Now()
			})
		}
		after := func(tenths time.Duration) { time.Sleep(lease * tenths / 10) }
		a.try()
		b.try()
		after(6)
		a.renew()
		after(5) // b has to look at the beat
		b.link.before.Store(int64(lease / 2))
		looked := make(chan driver.Reply, 1)
		go func() { looked <- b.try() }() // looks at the lock, and then at the beat
		after(4)
		a.renew()
		after(5) // it has sent the second look
		trusted := a.renew()
		<-looked
		b.link.before.Store(int64(0))
		after(6) // a lease from sending, and less from the answer
		return b.try().Granted && time.Now().Before(trusted)
	})
}

// The clock of a holder runs slow, and the clock of a process that waits runs fast: each differs
// by nearly 1 % from the true time.
func TestATakeOverLeavesRoomForTheClocks(t *testing.T) {
	both(t, func(t *testing.T, mutant bool) bool {
		_, a, b := sides(t)
		begin, rate := time.Now(), 1.0095
		if mutant {
			rate += 0.01 // as if the lease alone were waited for
		}
		casstore.SetClock(b.store, func() time.Time {
			return begin.Add(time.Duration(float64(time.Since(begin)) * rate))
		})
		a.try()
		trusted := begin.Add(time.Duration(float64(lease-clock.Drift(lease)) / 0.9905))
		for !b.try().Granted {
			time.Sleep(10 * time.Millisecond)
		}
		return time.Now().Before(trusted)
	})
}

// late asks for a lock by a request that is executed a lease later than it was sent.
func (s *side) late(key string) {
	s.t.Helper()
	s.link.before.Store(int64(lease))
	defer s.link.before.Store(int64(0))
	reply, err := s.store.Acquire(s.t.Context(), driver.AcquireRequest{
		Key: key, Owner: "late " + key, TTL: lease, Deadline: time.Now().Add(time.Second),
	})
	if !errors.Is(err, driver.ErrUnavailable) || !reply.Ambiguous {
		s.t.Errorf("a request without an answer: %+v, %v; want ErrUnavailable, and an unknown outcome", reply, err)
	}
}

// named returns the entries with a text in their names.
func named(server *castest.Memory, part string) (entries []casstore.Entry) {
	for _, e := range server.Entries() {
		if strings.Contains(e.Name, part) {
			entries = append(entries, e)
		}
	}
	return entries
}

// A request for a lock is executed long after its owner was released.
func TestALateAcquireFindsTheVoid(t *testing.T) {
	both(t, func(t *testing.T, mutant bool) bool {
		server, a, _ := sides(t)
		if mutant {
			a.link.strip = is("/:void/", true)
		}
		a.late("k")
		if _, err := a.store.Release(t.Context(), driver.ReleaseRequest{Key: "k", Owner: "late k", TTL: lease}); !errors.Is(err, driver.ErrNotOwner) {
			t.Errorf("%v; want ErrNotOwner", err)
		}
		time.Sleep(3 * lease)
		return len(named(server, "/lock")) > 0
	})
}

// One void is for all requests of a process that were sent before.
func TestOwnersThatAreReleasedTogetherShareAVoid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, a, _ := sides(t)
		keys := []string{"k", "l", "m"}
		for _, key := range keys {
			a.late(key)
		}
		var first []casstore.Entry
		for _, key := range keys {
			if _, err := a.store.Release(t.Context(), driver.ReleaseRequest{Key: key, Owner: "late " + key, TTL: lease}); !errors.Is(err, driver.ErrNotOwner) {
				t.Errorf("%v; want ErrNotOwner", err)
			}
			voids := named(server, "/:void/")
			if first == nil {
				first = voids
			}
			if len(voids) != 1 || voids[0] != first[0] {
				t.Errorf("after the release of %s: %+v, after the first one %+v", key, voids, first)
			}
		}
		time.Sleep(3 * lease)
		if locks := named(server, "/lock"); len(locks) > 0 {
			t.Errorf("locks of owners that were released: %+v", locks)
		}
	})
}

// A void fails the transaction of another owner, too. The acquire of that owner goes
// on.
func TestAVoidCostsOtherOwnersOneMoreTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, a, _ := sides(t)
		a.late("k")
		a.link.before.Store(int64(time.Second))
		got := make(chan driver.Reply, 1)
		go func() {
			reply, err := a.store.Acquire(t.Context(), driver.AcquireRequest{Key: "l", Owner: "other", TTL: lease})
			if err != nil {
				t.Error(err)
			}
			got <- reply
		}()
		synctest.Wait()
		a.link.before.Store(int64(0))
		if _, err := a.store.Release(t.Context(), driver.ReleaseRequest{Key: "k", Owner: "late k", TTL: lease}); !errors.Is(err, driver.ErrNotOwner) {
			t.Errorf("%v; want ErrNotOwner", err)
		}
		before := server.Commits()
		if reply := <-got; !reply.Granted || server.Commits() != before+2 {
			t.Errorf("%+v, and %d transactions", reply, server.Commits()-before)
		}
	})
}

// A sweep has deleted the void of a process that asked for no lock for hours.
func TestAProcessGoesOnWithoutItsVoid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, a, _ := sides(t)
		a.late("k")
		_ = a.releases("late k")
		for _, e := range named(server, "/:void/") {
			_, _ = server.Commit(t.Context(), casstore.Txn{Then: []casstore.Op{{Name: e.Name, Delete: true}}})
		}
		if !a.try().Granted {
			t.Error("a free lock is not granted")
		}
		if err := a.releases("a"); err != nil {
			t.Error(err)
		}
		a.late("k")
		_ = a.releases("late k")
		time.Sleep(3 * lease)
		if locks := named(server, "/lock"); len(locks) > 0 {
			t.Errorf("a lock of an owner that was released: %+v", locks)
		}
	})
}

// The release of an owner is under way when the owner asks again: it must not get a lock
// that the release would delete.
func TestAnOwnerGetsNothingWhileItIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, _ := sides(t)
		a.try()
		a.link.after.Store(int64(time.Second))
		released := make(chan error, 1)
		go func() { released <- a.releases("a") }()
		time.Sleep(time.Second / 2) // the lock is deleted, and the store does not know
		a.link.after.Store(int64(0))
		if reply, err := a.store.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "a", TTL: lease}); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("%+v, %v; want ErrUnavailable", reply, err)
		}
		if err := <-released; err != nil {
			t.Error(err)
		}
		if !a.try().Granted {
			t.Error("a free lock is not granted")
		}
	})
}
