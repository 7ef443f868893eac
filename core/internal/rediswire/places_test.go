//go:build integration

package rediswire

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/internal/redistest"
)

// A key that is never free keeps its list. Lockers that have died must not stay in it, or
// each free place would be offered to them first.
func TestALockerThatWasCalledAndDidNotComeLosesItsPlace(t *testing.T) {
	s := newScripted(t)
	for i := range 4 {
		s.granted(asked{script: "enter", owner: fmt.Sprint("o", i), atMost: 4})
	}
	for _, id := range []string{"d1", "d2", "w1", "w2"} {
		s.refused(asked{script: "enter", owner: id, id: id, atMost: 4})
	}
	leave := func(i int) string {
		s.Helper()
		s.want("a release", s.call(asked{script: "leave", owner: fmt.Sprint("o", i), atMost: 4}), 1)
		return s.announced()
	}
	s.want("called first", leave(0), "*1,+d1")
	s.granted(asked{script: "enter", owner: "barger", atMost: 4})
	s.want("called next", leave(1), "*1,+d2")
	s.want("the list", s.list(), "-d2,+w1,+w2")
	s.want("called next", leave(2), "*1,+w1")
	s.granted(asked{script: "enter", owner: "barger2", atMost: 4})
	s.granted(asked{script: "enter", owner: "barger3", atMost: 4})
	s.refused(asked{script: "enter", owner: "w1", id: "w1", atMost: 4})
	s.want("a locker that came keeps its place", s.list(), "+w1,+w2")
}

func TestAnExclusiveLockerWhoseBarrierIsOverLosesItsPlace(t *testing.T) {
	s := newScripted(t)
	for i := range 3 {
		s.granted(asked{script: "enter", owner: fmt.Sprint("o", i)})
	}
	s.refused(asked{script: "acquire", owner: "x", id: "dd", left: 1000})
	s.want("while it waits", s.inBarrier(asked{script: "leave", owner: "o0", id: "aa"}), 1)
	s.want("the list", s.list(), "dd,+aa")
	s.want("what was announced", s.announced(), "")
	s.barrierEnds()
	s.granted(asked{script: "enter", owner: "p"})
	s.want("then", s.call(asked{script: "leave", owner: "o1"}), 1)
	s.want("the list", s.list(), "-aa")
	s.want("what was announced", s.announced(), "*1,+aa")
}

// After its locker has left the list, a barrier keeps others out, and does not keep the key
// of a free lock.
func TestABarrierWithoutAListGoesWithTheLastPlace(t *testing.T) {
	s := newScripted(t)
	s.granted(asked{script: "enter", owner: "o1", id: "aa"})
	s.refused(asked{script: "acquire", owner: "x", id: "bb", left: 60_000}) // sets the barrier
	s.granted(asked{script: "enter", owner: "o2", id: "bb"})                // and wants a place now
	s.want("the list", s.list(), "")
	waitsForNothing := asked{script: "enter", owner: "o3"}
	s.later(waitsForNothing, s.inBarrier(waitsForNothing))
	s.want("a release", s.call(asked{script: "leave", owner: "o1"}), 1)
	s.want("the last release", s.call(asked{script: "leave", owner: "o2"}), 1)
	if left := s.rdb.HGetAll(t.Context(), s.key).Val(); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// docs/costs.md counts them.
func TestALockWithoutContentionIsNineCommands(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	s := newStore(t, srv.Client(t))
	take(t, s, "warm")
	rest(t, s)
	srv.ResetStats(t)
	take(t, s, "k")
	calls := srv.Calls(t)
	maps.DeleteFunc(calls, func(name string, _ int64) bool { return name == "hello" || strings.Contains(name, "|") }) // of connections
	sum := int64(0)
	for _, n := range calls {
		sum += n
	}
	if calls["evalsha"] != 2 || sum != 9 {
		t.Errorf("%d commands: %v", sum, calls)
	}
}

// A user who may write but not set an expiry must not leave a place that never ends.
func TestAPlaceThatGetsNoExpiryIsNone(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	admin := srv.Client(t)
	if err := admin.Do(t.Context(), "ACL", "SETUSER", "app", "on", ">p", "~*", "&*", "+@all", "-pexpire").Err(); err != nil {
		t.Fatal(err)
	}
	s := open(t, srv.Client(t, func(o *redis.Options) { o.Username, o.Password = "app", "p" }), func(*Config) {})
	defer s.Close()
	ask := driver.AcquireRequest{Key: "k", Owner: "a:1", Kind: driver.Shared, TTL: time.Minute}
	if _, err := s.Acquire(t.Context(), ask); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("a first place: %v", err)
	}
	if n := admin.Exists(t.Context(), "interlock:{k}").Val(); n != 0 {
		t.Error("a place without an owner is left")
	}
	first := open(t, admin, func(*Config) {})
	defer first.Close()
	ask.Owner = "b:1"
	if rep, err := first.Acquire(t.Context(), ask); err != nil || !rep.Granted {
		t.Fatalf("%+v, %v", rep, err)
	}
	ask.Owner = "c:1"
	if _, err := s.Acquire(t.Context(), ask); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("a second place: %v", err)
	}
	if admin.HExists(t.Context(), "interlock:{k}", "c:1").Val() {
		t.Error("a place without an owner is left beside another")
	}
}

// Requests for places that wait together share calls of a script, as others do.
func TestRequestsForPlacesShareCalls(t *testing.T) {
	const n = 100
	t.Parallel()
	srv := redistest.Start(t)
	s := newStore(t, srv.Client(t))
	keyOf := func(i int) string { return fmt.Sprint("k", i%50) }
	enter := func(i int) {
		rep, err := s.Acquire(t.Context(), driver.AcquireRequest{
			Key: keyOf(i), Owner: fmt.Sprint("a:", i), Kind: driver.Permit, AtMost: 2, TTL: time.Minute,
		})
		if err != nil || !rep.Granted {
			t.Errorf("%d: %+v, %v", i, rep, err)
		}
	}
	enter(-1) // of another key; now there is a connection
	together := func(what string, request func(i int)) {
		t.Helper()
		underWay(t, s, 0) // else the pipeline of the requests before takes some of these
		srv.ResetStats(t)
		q := s.requests.direct
		do := func(f func()) { q.mu.Lock(); defer q.mu.Unlock(); f() }
		do(func() { q.busy += maxPipelines }) // none leaves
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() { request(i) })
		}
		redistest.Eventually(t, time.Minute, func(context.Context) (err error) {
			do(func() {
				if len(q.queue) < n {
					err = errors.New("not all are queued")
				}
			})
			return err
		})
		do(func() { q.busy -= maxPipelines; q.dispatch() })
		all.Wait()
		if calls := srv.Calls(t)["evalsha"]; calls > n/8 {
			t.Errorf("%s: %d calls for %d requests", what, calls, n)
		}
	}
	together("enter", enter)
	batch := make([]driver.Renewal, n)
	for i := range batch {
		batch[i] = driver.Renewal{Key: keyOf(i), Owner: fmt.Sprint("a:", i), Kind: driver.Permit, TTL: time.Hour}
	}
	srv.ResetStats(t)
	s.Renew(t.Context(), batch, func(i int, _ bool, err error) {
		if err != nil {
			t.Errorf("%d is not renewed: %v", i, err)
		}
	})
	if calls := srv.Calls(t)["evalsha"]; calls > n/8 {
		t.Errorf("%d calls for %d renewals", calls, n)
	}
	for _, remember := range []bool{false, true} {
		if remember {
			together("enter", enter)
		}
		together("leave", func(i int) {
			if _, err := s.Release(t.Context(), driver.ReleaseRequest{
				Key: keyOf(i), Owner: fmt.Sprint("a:", i), Kind: driver.Permit, AtMost: 2, TTL: time.Minute,
				Remember: remember, Token: 5, Deadline: time.Now().Add(time.Minute),
			}); err != nil {
				t.Errorf("%d is not released: %v", i, err)
			}
		})
	}
}
