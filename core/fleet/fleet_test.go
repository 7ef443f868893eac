//go:build integration

package fleet_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/internal/redistest"
)

// The fence is kept for a minute after a lease that was renewed for long: Redis has
// forgotten it by then, and the operator's release tells it again.
func TestTokensGrowAfterAReleaseWhoseFenceWasForgotten(t *testing.T) {
	t.Parallel()
	w := common(t)
	rdb, f := w.rdb, w.fleet()
	lease := w.lock(w.process(), "k")
	// As if the clock of the server had been set back since.
	ahead := lease.Token() + time.Hour.Microseconds()
	owner := w.eventually(f, "k", func(l fleet.Lock) bool { return l.Held == 1 }).Holders[0].Owner
	if err := rdb.HSet(t.Context(), w.name("k"), owner, ahead).Err(); err != nil {
		t.Fatal(err)
	}
	if err := rdb.Del(t.Context(), w.name("k")+":fence").Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Release(t.Context(), "k", ahead); err != nil {
		t.Fatal(err)
	}
	if next := w.lock(w.process(), "k"); next.Token() <= ahead {
		t.Errorf("token %d after %d", next.Token(), ahead)
	}
}

// A quorum's lock is on several servers, and a single server cannot release it.
func TestALockOfAQuorumIsNotReleasedByOneServer(t *testing.T) {
	t.Parallel()
	w := common(t)
	rdb, f := w.rdb, w.fleet()
	rdb.HSet(t.Context(), w.name("k"), "a:1", "1790000000000000")
	rdb.Set(t.Context(), w.name("k")+":fence", "1790000000000000@1790000000000000", time.Minute)
	_, err := f.Release(t.Context(), "k", 1790000000000000)
	wantErr(t, err, fleet.ErrVoted)
	if l, err := f.Inspect(t.Context(), "k"); err != nil || l.Held != 1 || l.Fence != 1790000000000000 || l.Holders[0].Left >= 0 {
		t.Errorf("%+v, %v", l, err)
	}
}

// Whatever is in Redis, nothing panics, and what can be read is shown.
func TestValuesThatAreNoLocksAreNotTakenForLocks(t *testing.T) {
	t.Parallel()
	w := common(t)
	rdb, f := w.rdb, w.fleet()
	rdb.Set(t.Context(), w.name("string"), "x", 0)
	rdb.HSet(t.Context(), w.name("fields"), "q", ",+,-,,", "m", "x", "b", "y", "owner", "no number", "x@", "@", "y", "1@z")
	rdb.HSet(t.Context(), w.name("good"), "o{}:1", "5", "q", "a,+b,-c", "b", "1")
	rdb.HSet(t.Context(), w.prefix+":locker:{a}", "pid", "many", "seen", "-1", "host", "h")
	rdb.Set(t.Context(), w.prefix+":locker:{b}", "x", 0)
	rdb.HSet(t.Context(), w.name(""), "o", "1")
	rdb.HSet(t.Context(), w.name(`\x`), "o", "1")
	all := w.list(f, "")
	l := all["good"]
	if len(all) != 1 || l.Held != 1 || l.Holders[0].Token != 5 || !l.Holders[0].Since.IsZero() || len(l.Waiters) != 3 {
		t.Fatalf("%+v", all)
	}
	if w := l.Waiters; w[0].Locker.Host != "h" || w[0].Locker.PID != 0 || w[0].Place || !w[1].Place || w[1].Called || !w[2].Called {
		t.Errorf("%+v", w)
	}
	_, err := f.Inspect(t.Context(), "string")
	wantErr(t, err, driver.ErrKeyOccupied)
	var listed []error
	for _, err := range f.Locks(t.Context(), "string") { // one key, which must not look like a free lock
		listed = append(listed, err)
	}
	wantErr(t, errors.Join(listed...), driver.ErrKeyOccupied)
	if l, err := f.Inspect(t.Context(), "fields"); err != nil || l.Held != 0 {
		t.Errorf("%+v, %v", l, err)
	}
}

func TestALockWithVeryManyHoldersIsCounted(t *testing.T) {
	t.Parallel()
	w := common(t)
	rdb, f := w.rdb, w.fleet()
	ends := time.Now().Add(time.Hour).UnixMilli()
	fields := []any{"m", ends, "q", "w"}
	const n = 3000
	for i := range n {
		fields = append(fields, fmt.Sprintf("id:%d", i), fmt.Sprintf("%d@%d", i+1, ends))
	}
	if err := rdb.HSet(t.Context(), w.name("k"), fields...).Err(); err != nil {
		t.Fatal(err)
	}
	if l := w.list(f, "")["k"]; l.Held != n || len(l.Holders) == 0 || len(l.Holders) > 1000 || len(l.Waiters) != 1 {
		t.Errorf("listed: held by %d, %d named", l.Held, len(l.Holders))
	}
	l, err := f.Inspect(t.Context(), "k")
	if err != nil || l.Held != n || len(l.Holders) != n || l.Kind != fleet.Places {
		t.Errorf("held by %d, %d named: %v", l.Held, len(l.Holders), err)
	}
	if _, err := f.Release(t.Context(), "k", n); err != nil {
		t.Error(err)
	}
	if held := rdb.HLen(t.Context(), w.name("k")).Val(); held != n-1+2 {
		t.Errorf("%d fields are left", held)
	}
}

func TestScanningIsBounded(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	w := worldOf(t, srv.Client(t), "interlock")
	_, err := w.rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for i := range 20_000 {
			p.HSet(t.Context(), fmt.Sprintf("other:%d", i), "f", "v")
		}
		return nil
	})
	wantErr(t, err, nil)
	f := w.fleet(fleet.Rate(40_000))
	srv.ResetStats(t)
	began := time.Now()
	if n := len(w.list(f, "")); n != 0 {
		t.Errorf("%d locks", n)
	}
	if took := time.Since(began); took < 400*time.Millisecond {
		t.Errorf("20,000 keys took %v; 40,000 a second are allowed", took)
	}
	calls := srv.Calls(t)
	if calls["scan"] < 100 || calls["scan"] > 400 || calls["keys"] != 0 || calls["hlen"] != 0 {
		t.Errorf("%v", calls)
	}
}
