package rediswire

import (
	"context"
	_ "embed"
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

// acquireBefore is acquire.lua of the version before places, whole. The fault suite in
// trust reads it, too.
//
//go:embed testdata/acquire-before-places.lua
var acquireBefore string

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
	s.want("called first", leave(0), "*1,+d1,+d2,+w1,+w2")
	s.granted(asked{script: "enter", owner: "barger", atMost: 4})
	s.want("called next", leave(1), "*1,+d2,+w1,+w2")
	s.want("the list", s.list(), "-d2,+w1,+w2")
	s.want("called next", leave(2), "*1,+w1,+w2")
	s.granted(asked{script: "enter", owner: "barger2", atMost: 4})
	s.granted(asked{script: "enter", owner: "barger3", atMost: 4})
	s.refused(asked{script: "enter", owner: "w1", id: "w1", atMost: 4})
	s.want("one that came, and keeps its place", s.list(), "+w1,+w2")
}

func TestAnExclusiveLockerWhoseBarrierIsOverLosesItsPlace(t *testing.T) {
	s := newScripted(t)
	for i := range 3 {
		s.granted(asked{script: "enter", owner: fmt.Sprint("o", i)})
	}
	s.refused(asked{script: "acquire", owner: "x", id: "dd", left: 1000})
	s.want("while it waits", s.call(asked{script: "leave", owner: "o0", id: "aa"}), 1)
	s.want("the list", s.list(), "dd,+aa")
	s.want("what was announced", s.announced(), "")
	s.eventually(asked{script: "enter", owner: "p"})
	s.want("then", s.call(asked{script: "leave", owner: "o1"}), 1)
	s.want("the list", s.list(), "-aa")
	s.want("what was announced", s.announced(), "*1,+aa")
}

// A barrier whose locker has left the list keeps others out, and does not keep the key of a
// lock that is free.
func TestABarrierWithoutAListGoesWithTheLastPlace(t *testing.T) {
	s := newScripted(t)
	s.granted(asked{script: "enter", owner: "o1", id: "aa"})
	s.refused(asked{script: "acquire", owner: "x", id: "bb", left: 60_000}) // sets the barrier
	s.granted(asked{script: "enter", owner: "o2", id: "bb"})                // and wants a place now
	s.want("the list", s.list(), "")
	if !s.rdb.HExists(t.Context(), s.key, "b").Val() {
		t.Fatal("there is no barrier")
	}
	s.rdb.HSet(t.Context(), s.key, "b", time.Now().Add(time.Minute).UnixMilli()) // however busy the machine is
	s.refused(asked{script: "enter", owner: "o3"})                               // it waits for nothing
	s.want("a release", s.call(asked{script: "leave", owner: "o1"}), 1)
	s.want("the last release", s.call(asked{script: "leave", owner: "o2"}), 1)
	if left := s.rdb.HGetAll(t.Context(), s.key).Val(); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// All that wait for places come together after an exclusive holder.
func TestAllThatWaitForPlacesAreNamedTogether(t *testing.T) {
	s := newScripted(t)
	s.granted(asked{script: "acquire", owner: "x"})
	for _, id := range []string{"aa", "bb", "cc"} {
		s.refused(asked{script: "enter", owner: id, id: id})
	}
	s.want("a release", s.call(asked{script: "release", owner: "x"}), []any{"+aa,+bb,+cc"})
	s.want("what was announced", s.announced(), "+aa,+bb,+cc")
	s.granted(asked{script: "enter", owner: "aa", id: "aa", rest: "+bb,+cc"})
	s.granted(asked{script: "enter", owner: "bb", id: "bb", rest: "+aa,+cc"})
	s.want("the list", s.list(), "+cc")
}

// During a rollout processes of the version before share the server.
func TestAProcessOfTheVersionBeforeSeesPlacesAsAHeldLock(t *testing.T) {
	s := newScripted(t)
	s.granted(asked{script: "enter", owner: "a"})
	keys := []string{s.key, s.key + ":fence"}
	ask := func() any {
		return s.rdb.Eval(t.Context(), acquireBefore, keys, "x", 60_000, 120_000, "", "aa").Val()
	}
	if list, ok := ask().([]any); !ok || list[2] != int64(1) {
		t.Fatalf("the old process is not refused and listed: %v", list)
	}
	s.want("the list", s.list(), "aa")
	s.granted(asked{script: "enter", owner: "c"}) // it sets no barrier
	s.want("a release", s.call(asked{script: "leave", owner: "c"}), 1)
	s.want("the list", s.list(), "aa")
	s.want("a release", s.call(asked{script: "leave", owner: "a"}), 1)
	s.want("what was announced", s.announced(), "aa")
	if token, ok := ask().(int64); !ok {
		t.Errorf("the free lock is refused: %v", token)
	}
}

func TestAFreeLockCostsWhatItDidBeforePlaces(t *testing.T) {
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	var calls []map[string]int64
	for i, args := range [][]any{{"o:1", 1000, 61_000, "aa", "bb"}, {"o:1", 1000, 61_000, "bb", "aa"}} {
		keys := []string{fmt.Sprintf("{%d}", i), fmt.Sprintf("{%d}:fence", i)}
		srv.ResetStats(t)
		if err := rdb.Eval(t.Context(), []string{acquireBefore, acquireScript.source}[i], keys, args...).Err(); err != nil {
			t.Fatal(err)
		}
		sent := srv.Calls(t)
		maps.DeleteFunc(sent, func(name string, _ int64) bool { return name == "hello" || strings.Contains(name, "|") }) // of connections
		calls = append(calls, sent)
	}
	if !maps.Equal(calls[0], calls[1]) {
		t.Errorf("commands before %v, now %v", calls[0], calls[1])
	}
}

// A user who may write but not set an expiry must not leave a place that never ends.
func TestAPlaceThatGetsNoExpiryIsNone(t *testing.T) {
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
		t.Error("a place that nobody has is left")
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
		t.Error("a place that nobody has is left beside another")
	}
}

func TestTheAnswerToARequestForAPlaceIsReadStrictly(t *testing.T) {
	const token = int64(1_700_000_000_000_000)
	full := []any{"a:1,a:2", int64(900), int64(1), int64(1)}
	for name, c := range map[string]struct {
		kind  driver.Kind
		val   any
		known bool
	}{
		"a token":                     {driver.Permit, token, true},
		"a refusal":                   {driver.Permit, full, true},
		"a refusal of the lock":       {driver.Permit, []any{"a:1", int64(900), int64(1)}, false},
		"a refusal of a place":        {driver.Exclusive, full, false},
		"a number that is no flag":    {driver.Permit, []any{"a:1", int64(900), int64(1), int64(900)}, false},
		"a time that is none":         {driver.Permit, []any{"a:1", "900", int64(1), int64(1)}, false},
		"holders that are none":       {driver.Shared, []any{int64(1), int64(900), int64(1), int64(1)}, false},
		"the answer to another":       {driver.Shared, int64(2), false},
		"an empty list":               {driver.Shared, []any{}, false},
		"a longer list":               {driver.Shared, append(full[:4:4], int64(1)), false},
		"nothing":                     {driver.Shared, nil, false},
		"a refusal of the lock alone": {driver.Exclusive, full[:3], true},
	} {
		r := &acquisition{ask: driver.AcquireRequest{Kind: c.kind}}
		r.Val = c.val
		rep, err := r.reply()
		if (err == nil) != c.known || err != nil && (rep.Granted || !rep.Ambiguous) {
			t.Errorf("%s: %+v, %v", name, rep, err)
		}
		if err == nil && !rep.Granted && rep.Full != (c.kind == driver.Permit) {
			t.Errorf("%s: %+v", name, rep)
		}
	}
}

func FuzzAnnouncements(f *testing.F) {
	for _, m := range []string{"", "a,b", "+a,b", "*1,+a", "*2,+a,+b,c", "*", "*,", "*0,+a", "*-1,a", "*99999999999999999999,a", "*1", "*1,", "**1,a"} {
		f.Add(m)
	}
	f.Fuzz(func(t *testing.T, message string) {
		s := signalOf(message)
		switch {
		case s.Now < 0, s.Now > 0 && s.Next == "":
			t.Errorf("%q is %+v", message, s)
		case s.Now > 0 && !strings.HasSuffix(message, ","+s.Next):
			t.Errorf("%q is %+v", message, s)
		case s.Now == 0 && s.Next != "" && s.Next != message:
			t.Errorf("%q is %+v", message, s)
		}
	})
}

// Requests for places that wait together share calls of a script, as others do.
func TestRequestsForPlacesShareCalls(t *testing.T) {
	const n = 100
	srv := redistest.Start(t)
	s := open(t, srv.Client(t), func(set *Config) { set.Timeout = time.Minute })
	defer s.Close()
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
		redistest.Eventually(t, 10*time.Second, func(context.Context) (err error) {
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
