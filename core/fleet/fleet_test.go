package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestLocksAreShownWithTheProcessesThatHoldThemAndWait(t *testing.T) {
	topologies(t, func(t *testing.T, rdb redis.UniversalClient) {
		f := open(t, rdb)
		a, b := process(t, rdb, core.Service("bank", "v1")), process(t, rdb, core.Service("cron", "v2"))
		lease := lock(t, a, "exclusive")
		lock(t, a, "shared", core.Shared())
		lock(t, b, "shared", core.Shared())
		lock(t, b, "permit", core.Permits(2))
		ctx, cancel := context.WithCancel(t.Context())
		waited := make(chan error, 1)
		go func() {
			_, err := b.Lock(ctx, "exclusive")
			waited <- err
		}()

		l := eventually(t, f, "exclusive", func(l fleet.Lock) bool {
			return len(l.Waiters) == 1 && l.Waiters[0].Locker.Listed && l.Holders[0].Locker.Listed
		})
		host, _ := os.Hostname()
		h, w := l.Holders[0], l.Waiters[0]
		if l.Kind != fleet.Exclusive || l.Held != 1 || h.Token != lease.Token() || l.Fence != lease.Token() {
			t.Errorf("%+v; want token %d", l, lease.Token())
		}
		if h.Left <= 10*time.Second || h.Left > 30*time.Second || h.Age <= 0 || h.Age > time.Minute || !l.Oldest().Equal(h.Since) {
			t.Errorf("%v left of a lease of 30 s, age %v", h.Left, h.Age)
		}
		if !strings.HasPrefix(h.Owner, h.Locker.ID+":") || h.Locker.Host != host || h.Locker.PID != os.Getpid() ||
			h.Locker.Service != "bank" || h.Locker.Version != "v1" || h.Locker.Protocol != driver.Protocol ||
			h.Locker.Renews() != "yes" || time.Since(h.Locker.Started) > time.Minute {
			t.Errorf("holder %+v", h)
		}
		if w.Locker.Service != "cron" || w.Place || w.Called || w.Locker.ID == h.Locker.ID {
			t.Errorf("waiter %+v", w)
		}

		all := list(t, f, "")
		if len(all) != 3 {
			t.Errorf("%d locks: %+v", len(all), all)
		}
		if l := all["shared"]; l.Kind != fleet.Places || l.Held != 2 || len(l.Holders) != 2 ||
			l.Holders[0].Locker.ID == l.Holders[1].Locker.ID {
			t.Errorf("shared: %+v", l)
		}
		if l := all["permit"]; l.Kind != fleet.Places || l.Held != 1 || l.Holders[0].Left <= 0 || l.Holders[0].Locker.Service != "cron" {
			t.Errorf("permit: %+v", l)
		}
		lockers := map[string]string{}
		for l, err := range f.Lockers(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			lockers[l.Service] = l.ID
		}
		if len(lockers) != 2 || lockers["bank"] != h.Locker.ID || lockers["cron"] != w.Locker.ID {
			t.Errorf("lockers %v", lockers)
		}
		cancel()
		wantErr(t, <-waited, context.Canceled)
		if l, err := f.Inspect(t.Context(), "free"); err != nil || l.Held != 0 || l.Kind != "" {
			t.Errorf("a free lock: %+v, %v", l, err)
		}
	})
}

func TestALockThatIsReleasedByAnOperatorIsALossOfItsHolder(t *testing.T) {
	topologies(t, func(t *testing.T, rdb redis.UniversalClient) {
		f := open(t, rdb)
		lost := make(chan observe.Loss, 1)
		a := process(t, rdb, core.Watchdog(9*time.Second), core.OnLost(func(l core.Loss) { lost <- l }))
		b, c := process(t, rdb), process(t, rdb)
		lease := lock(t, a, "k")
		turns := make(chan *core.Lease, 2)
		for _, l := range []*core.Locker{b, c} { // in this order
			n := len(eventually(t, f, "k", func(l fleet.Lock) bool { return l.Held == 1 }).Waiters)
			go func() {
				lease, err := l.Lock(t.Context(), "k")
				if err != nil {
					t.Error(err)
				}
				turns <- lease
			}()
			eventually(t, f, "k", func(l fleet.Lock) bool { return len(l.Waiters) == n+1 })
		}
		before, err := f.Inspect(t.Context(), "k")
		wantErr(t, err, nil)

		for _, wrong := range []int64{0, lease.Token() - 1, lease.Token() + 1} {
			_, err := f.Release(t.Context(), "k", wrong)
			wantErr(t, err, fleet.ErrNoGrant)
		}
		wantErr(t, lease.Check(t.Context()), nil)
		released := time.Now()
		h, err := f.Release(t.Context(), "k", lease.Token())
		if err != nil || h.Owner != before.Holders[0].Owner {
			t.Fatalf("%+v, %v", h, err)
		}
		loss := <-lost
		if loss.Token != lease.Token() || loss.Owner != h.Owner ||
			loss.Reason != observe.LossDeleted && loss.Reason != observe.LossTakenOver {
			t.Errorf("%+v", loss)
		}
		wantErr(t, lease.Err(), core.ErrLost)
		last := lease.Token()
		order := []string{before.Waiters[0].Locker.ID, before.Waiters[1].Locker.ID}
		for i := range 2 {
			next := <-turns
			if next.Token() <= last {
				t.Errorf("turn %d: token %d after %d", i, next.Token(), last)
			}
			last = next.Token()
			l, err := f.Inspect(t.Context(), "k")
			wantErr(t, err, nil)
			if l.Held != 1 {
				t.Fatalf("turn %d: held by %+v", i, l.Holders)
			}
			// The first of those that waited, unless it was slower than the second waits
			// for it: 5 ms.
			first := l.Holders[0]
			if i == 0 && first.Locker.ID == order[1] && first.Since.Sub(released) >= 5*time.Millisecond {
				slices.Reverse(order)
			}
			if first.Locker.ID != order[i] {
				t.Errorf("turn %d: held by %+v; want %s, the first of those that waited", i, first, order[i])
			}
			wantErr(t, next.Release(t.Context()), nil)
		}
		_, err = f.Release(t.Context(), "k", lease.Token())
		wantErr(t, err, fleet.ErrNoGrant)
	})
}

// The fence is kept for a minute after a lease that was renewed for long: Redis has
// forgotten it by then, and the operator's release tells it again.
func TestTokensGrowAfterAReleaseWhoseFenceWasForgotten(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	f := open(t, rdb)
	lease := lock(t, process(t, rdb), "k")
	// As if the clock of the server had been set back since.
	ahead := lease.Token() + time.Hour.Microseconds()
	owner := eventually(t, f, "k", func(l fleet.Lock) bool { return l.Held == 1 }).Holders[0].Owner
	if err := rdb.HSet(t.Context(), "interlock:{k}", owner, ahead).Err(); err != nil {
		t.Fatal(err)
	}
	if err := rdb.Del(t.Context(), "interlock:{k}:fence").Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Release(t.Context(), "k", ahead); err != nil {
		t.Fatal(err)
	}
	if next := lock(t, process(t, rdb), "k"); next.Token() <= ahead {
		t.Errorf("token %d after %d", next.Token(), ahead)
	}
}

func TestAnOperatorReleasesOnePlaceOfMany(t *testing.T) {
	topologies(t, func(t *testing.T, rdb redis.UniversalClient) {
		f := open(t, rdb)
		lost := make(chan observe.Loss, 3)
		a := process(t, rdb, core.Watchdog(9*time.Second), core.OnLost(func(l core.Loss) { lost <- l }))
		first, second := lock(t, a, "k", core.Permits(2)), lock(t, a, "k", core.Permits(2))
		got := make(chan *core.Lease, 1)
		b := process(t, rdb)
		go func() {
			lease, err := b.Lock(t.Context(), "k", core.Permits(2))
			if err != nil {
				t.Error(err)
			}
			got <- lease
		}()
		l := eventually(t, f, "k", func(l fleet.Lock) bool { return len(l.Waiters) == 1 })
		if l.Held != 2 || !l.Waiters[0].Place {
			t.Errorf("%+v", l)
		}
		if _, err := f.Release(t.Context(), "k", first.Token()); err != nil {
			t.Fatal(err)
		}
		third := <-got
		if loss := <-lost; loss.Token != first.Token() {
			t.Errorf("%+v; want the loss of token %d", loss, first.Token())
		}
		wantErr(t, second.Check(t.Context()), nil)
		if third.Token() <= second.Token()+15 {
			t.Errorf("token %d after those from %d", third.Token(), second.Token())
		}
		l = eventually(t, f, "k", func(l fleet.Lock) bool { return l.Held == 2 && len(l.Waiters) == 0 })
		if len(lost) != 0 {
			t.Errorf("another place was lost: %+v", <-lost)
		}
	})
}

// What a version before places has written is shown, and released.
func TestLocksOfAnOlderVersionAreReadAndReleased(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	f := open(t, rdb)
	script := func(name string) string {
		text, err := os.ReadFile(path.Join("../internal/rediswire/testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	id := func(c string) string { return strings.Repeat(c, 32) }
	keys := []string{"interlock:{old}", "interlock:{old}:fence"}
	take := func(owner string) any {
		v, err := rdb.Eval(t.Context(), script("acquire-before-places.lua"), keys, owner, 30_000, 90_000, "", id("w")).Result()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	token, _ := take(id("a") + ":7").(int64)
	take(id("w") + ":1") // waits
	l, err := f.Inspect(t.Context(), "old")
	wantErr(t, err, nil)
	if l.Kind != fleet.Exclusive || l.Held != 1 || l.Holders[0].Token != token || l.Holders[0].Locker.ID != id("a") ||
		l.Holders[0].Locker.Renews() != "unknown" || len(l.Waiters) != 1 || l.Waiters[0].Locker.ID != id("w") {
		t.Errorf("%+v", l)
	}
	sub := rdb.Subscribe(t.Context(), "interlock:{old}:free")
	defer sub.Close()
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Release(t.Context(), "old", token); err != nil {
		t.Fatal(err)
	}
	if m, err := sub.ReceiveMessage(t.Context()); err != nil || m.Payload != id("w") {
		t.Errorf("announced %v, %v; want the locker that waits", m, err)
	}
	if next, _ := take(id("w") + ":2").(int64); next <= token {
		t.Errorf("token %d after %d", next, token)
	}
}

// A quorum's lock is on several servers, and one of them cannot release it.
func TestALockOfAQuorumIsNotReleasedByOneServer(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	f := open(t, rdb)
	rdb.HSet(t.Context(), "interlock:{k}", "a:1", "1790000000000000")
	rdb.Set(t.Context(), "interlock:{k}:fence", "1790000000000000@1790000000000000", time.Minute)
	_, err := f.Release(t.Context(), "k", 1790000000000000)
	wantErr(t, err, fleet.ErrVoted)
	if l, err := f.Inspect(t.Context(), "k"); err != nil || l.Held != 1 || l.Fence != 1790000000000000 || l.Holders[0].Left >= 0 {
		t.Errorf("%+v, %v", l, err)
	}
}

var hostileKeys = []string{
	"{", "}", `\`, `\(`, "a{b}c", `{\}`, "*", "?", "[a-z]", "^-", "\x00\x1b[2Jx", "\u202eevil", "\xff\xfe", "<script>alert(1)</script>",
	"q", "locker:x", "idem:x", " ", "a:fence", "}:fence",
}

func TestHostileKeysAreListedAsTheyAre(t *testing.T) {
	topologies(t, func(t *testing.T, rdb redis.UniversalClient) {
		f := open(t, rdb)
		l := process(t, rdb, core.Unlisted())
		for _, key := range hostileKeys {
			lock(t, l, key)
		}
		all := list(t, f, "")
		for _, key := range hostileKeys {
			if _, ok := all[key]; !ok {
				t.Errorf("%q is not listed", key)
			}
			if got, err := f.Inspect(t.Context(), key); err != nil || got.Held != 1 || got.Key != key {
				t.Errorf("%q: %+v, %v", key, got, err)
			}
			if strings.ContainsAny(key, "*?") {
				continue // it is a pattern
			}
			if got := list(t, f, key); len(got) != 1 || got[key].Key != key {
				t.Errorf("the pattern %q finds %v", key, got)
			}
		}
		if len(all) != len(hostileKeys) {
			t.Errorf("%d locks; want %d", len(all), len(hostileKeys))
		}
	})
}

// Whatever is in Redis, nothing panics, and what can be read is shown.
func TestValuesThatAreNoLocksAreNotTakenForLocks(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	f := open(t, rdb)
	rdb.Set(t.Context(), "interlock:{string}", "x", 0)
	rdb.HSet(t.Context(), "interlock:{fields}", "q", ",+,-,,", "m", "x", "b", "y", "owner", "no number", "x@", "@", "y", "1@z")
	rdb.HSet(t.Context(), "interlock:{good}", "o{}:1", "5", "q", "a,+b,-c", "b", "1")
	rdb.HSet(t.Context(), "interlock:locker:{a}", "pid", "many", "seen", "-1", "host", "h")
	rdb.Set(t.Context(), "interlock:locker:{b}", "x", 0)
	rdb.HSet(t.Context(), "interlock:{}", "o", "1")
	rdb.HSet(t.Context(), `interlock:{\x}`, "o", "1")
	all := list(t, f, "")
	l := all["good"]
	if len(all) != 1 || l.Held != 1 || l.Holders[0].Token != 5 || !l.Holders[0].Since.IsZero() || len(l.Waiters) != 3 {
		t.Fatalf("%+v", all)
	}
	if w := l.Waiters; w[0].Locker.Host != "h" || w[0].Locker.PID != 0 || w[0].Place || !w[1].Place || w[1].Called || !w[2].Called {
		t.Errorf("%+v", w)
	}
	_, err := f.Inspect(t.Context(), "string")
	wantErr(t, err, driver.ErrKeyOccupied)
	if l, err := f.Inspect(t.Context(), "fields"); err != nil || l.Held != 0 {
		t.Errorf("%+v, %v", l, err)
	}
}

func TestALockWithVeryManyHoldersIsCounted(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	f := open(t, rdb)
	ends := time.Now().Add(time.Hour).UnixMilli()
	fields := []any{"m", ends, "q", "w"}
	const n = 3000
	for i := range n {
		fields = append(fields, fmt.Sprintf("id:%d", i), fmt.Sprintf("%d@%d", i+1, ends))
	}
	if err := rdb.HSet(t.Context(), "interlock:{k}", fields...).Err(); err != nil {
		t.Fatal(err)
	}
	if l := list(t, f, "")["k"]; l.Held != n || len(l.Holders) == 0 || len(l.Holders) > 1000 || len(l.Waiters) != 1 {
		t.Errorf("listed: held by %d, %d named", l.Held, len(l.Holders))
	}
	l, err := f.Inspect(t.Context(), "k")
	if err != nil || l.Held != n || len(l.Holders) != n || l.Kind != fleet.Places {
		t.Errorf("held by %d, %d named: %v", l.Held, len(l.Holders), err)
	}
	if _, err := f.Release(t.Context(), "k", n); err != nil {
		t.Error(err)
	}
	if held := rdb.HLen(t.Context(), "interlock:{k}").Val(); held != n-1+2 {
		t.Errorf("%d fields are left", held)
	}
}

func TestWaitReturnsWhenTheLockIsFree(t *testing.T) {
	topologies(t, func(t *testing.T, rdb redis.UniversalClient) {
		f := open(t, rdb)
		a := process(t, rdb)
		wantErr(t, f.Wait(t.Context(), "k"), nil)
		over, end := context.WithCancelCause(t.Context())
		end(errors.New("over"))
		for range 20 { // it ends before, or while, the lock is read
			wantErr(t, f.Wait(over, "k"), context.Cause(over))
		}
		for _, opts := range [][]core.Option{nil, {core.Shared()}} {
			lease := lock(t, a, "k", opts...)
			ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("enough"))
			if err := f.Wait(ctx, "k"); err == nil || !errors.Is(err, context.Cause(ctx)) {
				t.Errorf("%v; want the cause of the context", err)
			}
			cancel()
			done := make(chan error, 1)
			go func() { done <- f.Wait(t.Context(), "k") }()
			select {
			case err := <-done:
				t.Errorf("returned while the lock is held: %v", err)
			case <-time.After(100 * time.Millisecond):
			}
			wantErr(t, lease.Release(t.Context()), nil)
			wantErr(t, <-done, nil)
		}
	})
}

func TestScanningIsBounded(t *testing.T) {
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	_, err := rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for i := range 20_000 {
			p.HSet(t.Context(), fmt.Sprintf("other:%d", i), "f", "v")
		}
		return nil
	})
	wantErr(t, err, nil)
	f := open(t, rdb, fleet.Rate(40_000))
	srv.ResetStats(t)
	began := time.Now()
	if n := len(list(t, f, "")); n != 0 {
		t.Errorf("%d locks", n)
	}
	if took := time.Since(began); took < 400*time.Millisecond {
		t.Errorf("20,000 keys took %v; 40,000 a second are allowed", took)
	}
	calls := srv.Calls(t)
	if calls["scan"] < 100 || calls["scan"] > 400 || calls["keys"] != 0 || calls["hlen"] != 0 {
		t.Errorf("%v", calls)
	}
	for _, n := range []int{0, -1, 99} {
		_, err := fleet.New(rdb, fleet.Rate(n))
		wantErr(t, err, driver.ErrConfig)
	}
}

func TestAFleetReadsItsPrefixOnly(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	lock(t, process(t, rdb), "k")
	if n := len(list(t, open(t, rdb, fleet.Prefix("interloc?")), "")); n != 0 {
		t.Errorf("%d locks of another prefix", n)
	}
	if n := len(list(t, open(t, rdb), "")); n != 1 {
		t.Errorf("%d locks", n)
	}
	for _, prefix := range []string{"", "a{b"} {
		_, err := fleet.New(rdb, fleet.Prefix(prefix))
		wantErr(t, err, driver.ErrConfig)
	}
	_, err := fleet.New(nil)
	wantErr(t, err, driver.ErrConfig)
}
