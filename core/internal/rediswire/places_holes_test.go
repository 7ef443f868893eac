//go:build integration

package rediswire

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/internal/redistest"
)

// asked is a call of a script.
type asked struct {
	script string
	owner  string
	lease  int64 // ms
	atMost int64
	tokens int64
	id     string // the locker that waits
	left   int64  // for how long, in ms
}

// arguments returns what a script is called with.
func (c asked) arguments(key string) (keys []string, args []any) {
	switch c.script {
	case "acquire":
		waiter := c.id
		if waiter != "" && c.left > 0 {
			waiter += fmt.Sprint("@", c.left)
		}
		return []string{key, key + fenceSuffix}, []any{c.owner, c.lease, c.lease + 60_000, waiter}
	case "enter":
		return []string{key, key + fenceSuffix}, []any{c.owner, c.lease, c.lease + 60_000, c.atMost, c.id, c.tokens}
	case "stay", "renew":
		return []string{key}, []any{c.owner, c.lease}
	case "leave":
		return []string{key}, []any{c.owner, "RPUSH", c.id, c.atMost}
	default:
		return []string{key}, []any{c.owner, "RPUSH", c.id}
	}
}

// scripted calls the scripts of places on one key. It keeps their announcements in a
// list.
type scripted struct {
	*testing.T
	rdb *redis.Client
	key string
}

// newScripted has a separate key on the server that the tests share.
func newScripted(t *testing.T) *scripted {
	t.Helper()
	t.Parallel()
	srv, name := redistest.Common(t)
	return &scripted{t, srv.Client(t, patiently), "{" + name + "}"}
}

func (s *scripted) call(c asked) any {
	s.Helper()
	return s.together(c)[0]
}

// inBarrier makes a call a second before the barrier ends, however busy the machine is.
func (s *scripted) inBarrier(c asked) any {
	s.Helper()
	return s.together(asked{script: "barrier"}, c)[1]
}

// setsBarrier sets the end of the barrier to a second from now.
const setsBarrier = `local t = redis.call('TIME')
redis.call('HSET', KEYS[1], 'b', string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000) + 1000))`

// together makes calls at one moment, however busy the machine is.
func (s *scripted) together(calls ...asked) (replies []any) {
	s.Helper()
	pipelined := s.rdb.TxPipelined
	if len(calls) == 1 {
		pipelined = s.rdb.Pipelined // in a transaction it would be refused when memory is full
	}
	cmds, err := pipelined(s.Context(), func(tx redis.Pipeliner) error {
		for _, c := range calls {
			if c.script == "barrier" {
				tx.Eval(s.Context(), setsBarrier, []string{s.key})
				continue
			}
			if c.tokens == 0 {
				c.tokens = 1
			}
			if c.lease == 0 && c.script != "stay" {
				c.lease = 60_000
			}
			keys, args := c.arguments(s.key)
			tx.Eval(s.Context(), Sources()[c.script], keys, args...)
		}
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		s.Fatalf("%+v: %v", calls, err)
	}
	for _, cmd := range cmds {
		replies = append(replies, cmd.(*redis.Cmd).Val())
	}
	return replies
}

// granted makes a call that must return a token.
func (s *scripted) granted(c asked) int64 {
	s.Helper()
	return s.token(c, s.call(c))
}

// token is the one in the reply to a call.
func (s *scripted) token(c asked, reply any) int64 {
	s.Helper()
	plain, _ := roomy(reply)
	token, ok := plain.(int64)
	if !ok {
		s.Fatalf("%+v is refused: %v", c, reply)
	}
	return token
}

// refused makes a call that must be refused, and returns after how many ms to ask again.
func (s *scripted) refused(c asked) int64 {
	s.Helper()
	return s.later(c, s.call(c))
}

// later is the time in the reply to a call that is refused.
func (s *scripted) later(c asked, reply any) int64 {
	s.Helper()
	list, ok := reply.([]any)
	if !ok {
		s.Fatalf("%+v is granted", c)
	}
	return list[1].(int64)
}

// want compares the state with the expected one.
func (s *scripted) want(what string, got, want any) {
	s.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		s.Errorf("%s: %v; want %v", what, got, want)
	}
}

// announced returns the list that the lockers of it were called with, and takes the calls away. Each call has
// the id of its own locker alone.
func (s *scripted) announced() (list string) {
	s.Helper()
	head, all := "", []string(nil)
	for _, channel := range s.rdb.Keys(s.Context(), "wanted:*").Val() { // of all tests
		id := strings.TrimPrefix(channel, "wanted:")
		for _, call := range s.rdb.LRange(s.Context(), channel, 0, -1).Val() {
			got, name, _ := strings.Cut(strings.TrimPrefix(call, ":"), " ")
			if name != s.key {
				continue
			}
			s.rdb.LRem(s.Context(), channel, 0, call)
			if strings.HasPrefix(got, "*") {
				head, got, _ = strings.Cut(got, ",")
				head += ","
			}
			entries := strings.Split(got, ",")
			all = append(all, make([]string, max(0, len(entries)-len(all)))...)
			for i, entry := range entries {
				if driver.Waiter(entry).ID() == id {
					all[i] = entry
				} else if driver.Waiter(entry).ID() != "." {
					s.Errorf("the call to %s names another: %q", id, call)
				}
			}
		}
	}
	if slices.Contains(all, "") {
		s.Errorf("the lockers that are called are %q; want each locker of the list", all)
	}
	return head + strings.Join(all, ",")
}

func (s *scripted) list() string { return s.rdb.HGet(s.Context(), s.key, "q").Val() }

// Hole 1: what takes memory is refused as the first write of a script.
func TestAPlaceIsRenewedAndLeftWhenMemoryIsFull(t *testing.T) {
	t.Parallel()
	s := &scripted{t, redistest.Start(t).Client(t, patiently), "{k}"}
	s.granted(asked{script: "enter", owner: "a", lease: 10_000})
	s.granted(asked{script: "enter", owner: "o2"})
	s.refused(asked{script: "acquire", owner: "x", id: "aa", left: 5000})
	for _, set := range [][2]string{{"maxmemory-policy", "noeviction"}, {"maxmemory", "1"}} {
		if err := s.rdb.ConfigSet(t.Context(), set[0], set[1]).Err(); err != nil {
			t.Fatal(err)
		}
	}
	s.want("a renewal", s.call(asked{script: "stay", owner: "a", lease: 100_000}), 2)
	end := s.rdb.HGet(t.Context(), s.key, "a").Val()
	_, end, _ = strings.Cut(end, "@")
	s.want("the new lease", end > fmt.Sprint(time.Now().Add(50*time.Second).UnixMilli()), true)
	if list := s.call(asked{script: "enter", owner: "c", id: "bb", atMost: 2}).([]any); list[2] != int64(0) || list[3] != int64(1) {
		t.Errorf("a refusal that cannot be listed: %v", list)
	}
	s.want("a release", s.call(asked{script: "leave", owner: "a", atMost: 2}), 1)
	s.want("the last release", s.call(asked{script: "leave", owner: "o2", atMost: 2}), 1)
	s.want("what was announced", s.announced(), "aa")
}

// Hole 2: an exclusive waiter keeps new sharers out, but not when it is dead.
func TestADeadExclusiveWaiterKeepsOthersOutForAShortTimeOnly(t *testing.T) {
	for name, c := range map[string]struct{ left, barred int64 }{ // in ms
		"its wait was long":  {3_600_000, 1500},
		"its wait was short": {1000, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScripted(t)
			now := func() int64 { return s.rdb.Time(t.Context()).Val().UnixMilli() }
			s.granted(asked{script: "enter", owner: "a"})
			exclusive, other := asked{script: "acquire", owner: "x", id: "aa", left: c.left}, asked{script: "enter", owner: "o2", id: "bb"}
			before := now()
			replies := s.together(exclusive, other)
			after := now()
			s.later(exclusive, replies[0])
			s.later(other, replies[1])
			barrier, err := s.rdb.HGet(t.Context(), s.key, "b").Int64()
			if err != nil || barrier < before+c.barred || barrier > after+c.barred {
				t.Errorf("a request between %d and %d keeps others out until %d, %v", before, after, barrier, err)
			}
			s.barrierEnds()
			s.granted(other)
		})
	}
}

// barrierEnds has the barrier be over.
func (s *scripted) barrierEnds() {
	s.Helper()
	if !s.rdb.HExists(s.Context(), s.key, "b").Val() {
		s.Fatal("there is no barrier")
	}
	s.rdb.HSet(s.Context(), s.key, "b", s.rdb.Time(s.Context()).Val().Add(-time.Millisecond).UnixMilli())
}

// Hole 4: the last holder crashes, and the waiting lockers are still known. The key outlives its
// last place for a while.
func TestTheListOutlivesHoldersThatCrashed(t *testing.T) {
	for name, next := range map[string]asked{
		"an exclusive locker is next": {script: "acquire", owner: "x", id: "aa"},
		"a place is next":             {script: "enter", owner: "x", id: "aa", atMost: 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScripted(t)
			s.granted(asked{script: "enter", owner: "a", atMost: 1})
			for _, c := range []asked{next, {script: "enter", owner: "o2", id: "bb", atMost: 1}, {script: "acquire", owner: "c", id: "cc"}} {
				s.refused(c)
			}
			_, end, _ := strings.Cut(s.rdb.HGet(t.Context(), s.key, "a").Val(), "@")
			key, err := s.rdb.Do(t.Context(), "pexpiretime", s.key).Int64()
			if ends, _ := strconv.ParseInt(end, 10, 64); err != nil || key-ends < 900 {
				t.Errorf("a place that ends at %s, and its key at %d already, %v", end, key, err)
			}
			s.rdb.HSet(t.Context(), s.key, "a", "1@1000", "m", 1000) // its lease has ended
			s.granted(next)
			s.want("the list", s.list(), "+bb,cc")
			over, answer := "release", any([]any{"+bb,cc", int64(2)})
			if next.script == "enter" {
				over, answer = "leave", 1
			}
			s.want("a release", s.call(asked{script: over, owner: "x", atMost: 1}), answer)
			s.want("what was announced", s.announced(), "+bb,cc")
		})
	}
}

// Hole 5: others have left since, and the end that was known is not the next one.
func TestALockerAsksAgainWithinASecondWhereOwnersHavePlaces(t *testing.T) {
	s := newScripted(t)
	s.granted(asked{script: "enter", owner: "a", lease: 600_000})
	s.refused(asked{script: "acquire", owner: "x", id: "aa", left: 600_000})
	if ms := s.refused(asked{script: "enter", owner: "y"}); ms < 1 || ms > 1000 {
		t.Errorf("kept out by a locker that waits: to ask again in %d ms", ms)
	}
	short, next := asked{script: "enter", owner: "c", lease: 900, id: "aa"}, asked{script: "enter", owner: "z", atMost: 2}
	replies := s.together(short, next)
	s.token(short, replies[0])
	if ms := s.later(next, replies[1]); ms > 901 {
		t.Errorf("a place ends in 900 ms; to ask again in %d ms", ms)
	}
}

// Hole 7: a process that asked for fewer holders does not see the place that it leaves.
func TestAReleaseCallsOneLockerUnderALowerNumberToo(t *testing.T) {
	s := newScripted(t)
	for i := range 5 {
		s.granted(asked{script: "enter", owner: fmt.Sprint("o", i), atMost: 5, tokens: 16})
	}
	s.refused(asked{script: "enter", owner: "w", id: "aa", atMost: 5, tokens: 16})
	s.refused(asked{script: "enter", owner: "w2", id: "bb", atMost: 5, tokens: 16})
	s.want("a release", s.call(asked{script: "leave", owner: "o0", atMost: 2}), 1)
	s.want("what was announced", s.announced(), "*1,+aa")
	s.granted(asked{script: "enter", owner: "w", id: "aa", atMost: 5, tokens: 16})
}

// Hole 8: permits are handed on in their processes, each under a separate token.
func TestTokensOfPermitsDoNotCollide(t *testing.T) {
	s := newScripted(t)
	s.rdb.Set(t.Context(), s.key+":fence", time.Now().Add(time.Hour).UnixMicro(), 0) // the clock lags
	last := int64(0)
	for i := range 20 {
		token := s.granted(asked{script: "enter", owner: fmt.Sprint("o", i), tokens: 16})
		if token <= last {
			t.Fatalf("token %d; %d was given out", token, last)
		}
		last = token + 15
		s.want("the fence", s.rdb.Get(t.Context(), s.key+":fence").Val(), last)
	}
}

// Hole 10: what one command takes is limited.
func TestThousandsOfPlacesThatAreOverAreSweptAway(t *testing.T) {
	const n = 20_000
	s := newScripted(t)
	over := make([]any, 0, 2*n)
	for i := range n {
		over = append(over, fmt.Sprint("o", i), "5@1000")
	}
	s.rdb.HSet(t.Context(), s.key, append(over, "m", 1000)...)
	s.granted(asked{script: "enter", owner: "a", atMost: 1})
	s.want("the fields that are left", s.rdb.HLen(t.Context(), s.key).Val(), 2)
}

// roomy takes a grant under a clock that lags apart, and returns the token and the number of
// tokens left out after it.
func roomy(reply any) (token any, room int64) {
	if list, _ := reply.([]any); len(list) == 2 {
		return list[0], numbers(list)[1]
	}
	return reply, 0
}
