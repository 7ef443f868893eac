//go:build integration

package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/redisstore"
)

func TestEveryTokenIsGreaterThanAllBeforeIt(t *testing.T) {
	t.Parallel()
	w := alone(t)
	a, b := w.process(), w.process()
	var last int64
	grow := func(l *core.Locker, when string) {
		t.Helper()
		lease := w.lock(l, "k")
		if lease.Token() <= last {
			t.Errorf("%s: token %d after %d", when, lease.Token(), last)
		}
		last = lease.Token()
		w.release(lease)
	}
	grow(a, "first")
	grow(b, "another process")
	handed := w.lock(a, "k")
	next := make(chan int64, 1)
	done := later(func() error {
		lease, err := a.Lock(t.Context(), "k")
		if err != nil {
			return err
		}
		next <- lease.Token()
		return lease.Release(t.Context())
	})
	w.soon("a caller waits in this process", func(context.Context) bool { return a.Held()[0].Waiters == 1 })
	w.release(handed)
	if w.want("the hand-off", done); <-next <= handed.Token() {
		t.Errorf("hand-off: not above %d", handed.Token())
	}
	last = handed.Token() + 1
	grow(b, "behind a hand-off")
	if err := w.rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	grow(b, "after FLUSHALL")
	last = time.Now().Add(time.Hour).UnixMicro() // the server's clock was ahead
	w.rdb.Set(t.Context(), w.name("k")+":fence", last, time.Minute)
	grow(a, "by a clock that was set back")
}

func TestALocksExpiryIsItsLease(t *testing.T) {
	t.Parallel()
	w := common(t)
	s := w.store()
	left := func(key string) time.Duration { return w.rdb.PTTL(t.Context(), key).Val() }
	for _, lease := range []time.Duration{time.Hour, 10 * time.Hour} {
		ask := w.held(lease.String(), "a:1")
		ask.TTL = lease
		w.take(s, ask)
		name := w.name(ask.Key)
		if d := left(name); d > lease || d < lease/2 {
			t.Errorf("%v are left in Redis, want %v", d, lease)
		}
		if d := left(name + ":fence"); d > lease+time.Minute || d < lease/2 {
			t.Errorf("the fence stays %v, want the lease of %v and a minute", d, lease)
		}
		if fields := w.rdb.HKeys(t.Context(), name).Val(); !slices.Equal(fields, []string{"a:1"}) {
			t.Errorf("the hash is %v, want the owner alone", fields)
		}
	}
}

// Redisson #4100, #6302: keys that never expire.
func TestEveryKeyHasAnEnd(t *testing.T) {
	t.Parallel()
	w := alone(t)
	s := w.store()
	w.live(w.life(s, w.rdb, "k"), func(st step) error {
		err := st.do()
		w.ends()
		return err
	})
}

// ends fails the test if a key of the server has no end.
func (w *world) ends() {
	w.t.Helper()
	for _, key := range w.rdb.Keys(w.t.Context(), "*").Val() {
		if ttl, err := w.rdb.PTTL(w.t.Context(), key).Result(); ttl == -1 || err != nil {
			w.t.Errorf("%s never ends (%v)", key, err)
		}
	}
}

func TestHostileKeysNeitherCollideNorLeaveTheirSlot(t *testing.T) {
	t.Parallel()
	w := common(t)
	w.takeHostileKeys(w.store())
	w.gone()
}

// takeHostileKeys holds keys that could be taken for others, all at the same time.
func (w *world) takeHostileKeys(s *redisstore.Store) {
	w.t.Helper()
	keys := []string{
		"}", "{", "{}", "}{", "a}b", "a{b", `a\)b`, `a\(b`, `\`, `\\`, "a:fence", "a:free", "a}:fence",
		"\x00", "\r\n", "ä€𝄞", " ", "%7D", strings.Repeat("x", 512),
	}
	for _, key := range keys {
		w.take(s, w.held(key, "a:1"))
	}
	for _, key := range keys {
		wantErr(w.t, w.free(s, key, "a:1"), nil)
	}
}

func TestADamagedRecordIsNeitherGrantedNorResolved(t *testing.T) {
	t.Parallel()
	w := common(t)
	s := w.store()
	for name, damage := range map[string][]string{
		"other version":  {"hset v 2"},
		"no version":     {"hdel v"},
		"no token":       {"hdel t"},
		"no fingerprint": {"hdel f"},
		"no generation":  {"hdel g"},
		"unknown state":  {"hset s ?"},
		"no state":       {"hdel s"},
		"no lease":       {"hset s c u soon"},
		"no response":    {"hdel r"},
		"empty response": {`hset r ""`},
		"another's hash": {"del", "hset a b"},
		"another's type": {"set x"},
	} {
		w.complete(s, name, "response")
		for _, line := range damage {
			args := []any{}
			for _, field := range strings.Fields(line) {
				args = append(args, strings.Trim(field, `"`))
			}
			if err := w.rdb.Do(t.Context(), slices.Insert(args, 1, any(w.record(name)))...).Err(); err != nil {
				t.Fatal(name, err)
			}
		}
		if rep, err := s.Claim(t.Context(), w.claim(name, "b")); !errors.Is(err, record.ErrDamaged) {
			t.Errorf("%s: %+v, %v; want %v", name, rep, err, record.ErrDamaged)
		}
	}
	w.complete(s, "k", "response")
	w.rdb.HSet(t.Context(), w.record("k"), "v", "2", "s", "c", "m", "1", "u", "1")
	for _, response := range [][]byte{nil, []byte("found out")} {
		err := s.Resolve(t.Context(), record.ResolveRequest{
			ID: "k", Token: "c", Response: response, Retention: time.Hour, Deadline: w.deadline(),
		})
		wantErr(t, err, record.ErrDamaged)
	}
}

// complete claims a record and commits a response.
func (w *world) complete(s *redisstore.Store, id, response string) {
	w.t.Helper()
	ask := w.claim(id, "a")
	rep, err := s.Claim(w.t.Context(), ask)
	if err == nil && rep.State == record.StateGranted {
		_, err = s.Commit(w.t.Context(), record.CommitRequest{
			ID: id, Token: "a", Fingerprint: ask.Fingerprint, Generation: rep.Generation,
			Response: []byte(response), Retention: time.Hour, Deadline: w.deadline(),
		})
	}
	if err != nil || rep.State != record.StateGranted {
		w.t.Fatalf("%s: %+v, %v", id, rep, err)
	}
}

func TestALockerHasAnEntryThatNamesItsProcess(t *testing.T) {
	t.Parallel()
	w := common(t)
	l := w.process(core.Service("bank", "v1"))
	lease := w.lock(l, "k")
	var names []string
	w.soon("the locker has an entry", func(ctx context.Context) bool {
		names = w.rdb.Keys(ctx, w.prefix+":locker:*").Val()
		return len(names) == 1
	})
	entry := w.rdb.HGetAll(t.Context(), names[0]).Val()
	host, _ := os.Hostname()
	if entry["host"] != host || entry["pid"] != strconv.Itoa(os.Getpid()) || entry["service"] != "bank" ||
		entry["version"] != "v1" || entry["protocol"] != "1" || len(entry) != 7 {
		t.Errorf("%q", entry)
	}
	for _, field := range []string{"started", "seen"} {
		ms, err := strconv.ParseInt(entry[field], 10, 64)
		if age := time.Since(time.UnixMilli(ms)); err != nil || age < -time.Hour || age > time.Hour {
			t.Errorf("%s is %q: %v ago, %v", field, entry[field], age, err)
		}
	}
	// The id is the part before the colon in the owners of the locker.
	id, _, _ := strings.Cut(w.rdb.HKeys(t.Context(), w.name("k")).Val()[0], ":")
	if names[0] != w.prefix+":locker:{"+id+"}" {
		t.Errorf("the entry is %q, and the locker %q", names[0], id)
	}
	w.release(lease)
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.soon("Close takes the entry away", func(ctx context.Context) bool { return w.rdb.Exists(ctx, names[0]).Val() == 0 })
}

// A list has room for 64 KiB of lockers. Neither a locker that waits nor one that gives the lock up, and
// wants it again, gets into a full list.
func TestNoLockerGetsIntoAFullList(t *testing.T) {
	t.Parallel()
	w := common(t)
	s := w.store()
	token := w.take(s, w.held("k", "a:1")).Token
	w.rdb.HSet(t.Context(), w.name("k"), "q", strings.Repeat("w", 65535))
	for i, listed := range []bool{true, false} {
		ask := w.held("k", fmt.Sprintf("b%d:1", i))
		ask.Waiter = driver.Waiter(fmt.Sprint("b", i))
		if rep := w.acquire(s, ask); rep.Listed != listed {
			t.Errorf("the locker %d: %+v; want listed %t", i, rep, listed)
		}
	}
	found, err := s.Release(t.Context(), driver.ReleaseRequest{
		Key: "k", Owner: "a:1", Token: token, TTL: w.Holds(), Waiter: "a~q", Deadline: w.deadline(),
	})
	if found.Others != 2 || found.Patience >= time.Second || err != nil {
		t.Errorf("a release into a full list finds %+v, %v; want the two lockers that were listed, and not its own", found, err)
	}
}
