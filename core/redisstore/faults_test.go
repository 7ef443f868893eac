package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

func lock(t *testing.T, l *core.Locker, key string, opts ...core.Option) *core.Lease {
	t.Helper()
	ctx, cancel := bounded(20 * time.Second)
	t.Cleanup(cancel)
	lease, err := l.Lock(ctx, key, opts...)
	if err != nil {
		t.Fatalf("Lock(%q): %v", key, err)
	}
	return lease
}

// tryLock is TryLock, tried again if a busy machine needs longer for the answer than
// that waits.
func tryLock(t *testing.T, l *core.Locker, key string) (lease *core.Lease, err error) {
	t.Helper()
	for range 5 {
		begin := time.Now()
		lease, err = l.TryLock(t.Context(), key)
		waited := time.Since(begin) >= 200*time.Millisecond // a refusal that comes at once counts
		if !waited || !errors.Is(err, core.ErrUnavailable) || errors.Is(err, driver.ErrNotReady) {
			break
		}
	}
	return lease, err
}

// confirm is Check, tried again if a busy machine needs longer for the answer than
// that waits: a sixth of the lease.
func confirm(t *testing.T, lease *core.Lease) (err error) {
	t.Helper()
	for range 5 {
		begin := time.Now()
		err = lease.Check(t.Context())
		if time.Since(begin) < 500*time.Millisecond || !errors.Is(err, core.ErrUnavailable) {
			break
		}
	}
	return err
}

// stalled reports whether a busy machine may be why a release that began then could
// not be answered: the locker goes on with it.
func stalled(err error, begin time.Time) bool {
	return time.Since(begin) >= time.Second && errors.Is(err, core.ErrUnavailable) && !errors.Is(err, core.ErrLost)
}

func release(t *testing.T, lease *core.Lease) {
	t.Helper()
	if err := lease.Release(context.Background()); err != nil {
		t.Errorf("Release(%q): %v", lease.Key(), err)
	}
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error is %v, want %v", err, want)
	}
}

// wantGone waits until no lock is left in the store. Fences may be. What could not be
// released at once is released again after ten seconds.
func wantGone(t *testing.T, rdb *redis.Client) {
	t.Helper()
	redistest.Eventually(t, 30*time.Second, func(ctx context.Context) error {
		keys, err := rdb.Keys(ctx, "interlock:{*}").Result()
		if err != nil {
			return err
		}
		if len(keys) > 0 {
			return fmt.Errorf("orphaned: %v", keys)
		}
		return nil
	})
}

// ended waits for a lease's context and returns its cause.
func ended(t *testing.T, lease *core.Lease, within time.Duration) error {
	t.Helper()
	select {
	case <-lease.Context().Done():
		return context.Cause(lease.Context())
	case <-time.After(within):
		t.Fatalf("the context has not ended within %v", within)
		return nil
	}
}

func TestUncontendedLockAndReleaseAreTwoRoundTrips(t *testing.T) {
	srv := redistest.Shared(t)
	l := newLocker(t, srv.Client(t), core.Unlisted())
	release(t, lock(t, l, "warm")) // connections and scripts
	srv.ResetStats(t)
	const n = 100
	for i := range n {
		release(t, lock(t, l, fmt.Sprint("k", i)))
	}
	calls := srv.Calls(t)
	if calls["evalsha"] != 2*n || calls["eval"] != 0 || calls["publish"] != 0 || calls["subscribe"] != 0 {
		t.Errorf("%d locks and releases took %v, want %d evalsha and no publish", n, calls, 2*n)
	}
	t.Logf("commands of %d pairs: %v", n, calls)
}

func TestEveryTokenIsGreaterThanAllBeforeIt(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	a, b := newLocker(t, rdb), newLocker(t, rdb)
	var last int64
	grow := func(lease *core.Lease, when string) {
		t.Helper()
		if lease.Token() <= last {
			t.Fatalf("%s: token %d after %d", when, lease.Token(), last)
		}
		last = lease.Token()
	}
	for range 3 {
		// 20,000 hand-offs in one process: two goroutines pass the lock to and fro.
		done := make(chan struct{})
		lease := lock(t, a, "k")
		go func() {
			defer close(done)
			for range 10_000 {
				other, err := a.Lock(t.Context(), "k")
				if err != nil {
					t.Error(err)
					return
				}
				if other.Token() <= last {
					t.Errorf("hand-off: token %d after %d", other.Token(), last)
				}
				last = other.Token()
				release(t, other)
			}
		}()
		for range 10_000 {
			grow(lease, "hand-off")
			release(t, lease)
			lease = lock(t, a, "k")
		}
		grow(lease, "hand-off")
		release(t, lease)
		<-done
		lease = lock(t, b, "k")
		grow(lease, "another process")
		release(t, lease)
		if err := rdb.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		lease = lock(t, b, "k")
		grow(lease, "after FLUSHALL")
		release(t, lease)
	}
	wantGone(t, rdb)
}

func TestTokenGrowsWhenTheServersClockWasAhead(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	l := newLocker(t, rdb)
	ahead := time.Now().Add(time.Hour).UnixMicro()
	if err := rdb.Set(t.Context(), "interlock:{k}:fence", ahead, time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	lease := lock(t, l, "k")
	if lease.Token() != ahead+1 {
		t.Errorf("token %d, want %d", lease.Token(), ahead+1)
	}
	release(t, lease)
}

func TestLostReplyOfAnAcquireTakesTheLockOnce(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	w := newWire()
	l := newLocker(t, srv.Client(t, w.through), core.Watchdog(15*time.Second))
	release(t, lock(t, l, "warm"))
	w.replies(once())
	lease := lock(t, l, "k")
	w.replies(nil)
	if n := rdb.HLen(t.Context(), "interlock:{k}").Val(); n != 1 {
		t.Errorf("the lock has %d fields, want its owner alone", n)
	}
	release(t, lease)
	wantGone(t, rdb)
}

func TestLostReplyOfAReleaseIsSuccess(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	w := newWire()
	l := newLocker(t, srv.Client(t, w.through))
	lease := lock(t, l, "k")
	w.replies(once())
	release(t, lease)
	w.replies(nil)
	wantGone(t, rdb)
}

func TestCancelledAcquireLeavesNoOrphan(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	w := newWire()
	l := newLocker(t, srv.Client(t, w.through))
	release(t, lock(t, l, "warm"))
	hold, come := make(chan struct{}), make(chan struct{}, 16)
	w.replies(func([]byte) error { come <- struct{}{}; <-hold; return nil })
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error, 1)
	go func() {
		_, err := l.Lock(ctx, "k")
		got <- err
	}()
	<-come // executed; the reply is on its way
	cancel()
	wantErr(t, <-got, context.Canceled)
	if rdb.Exists(t.Context(), "interlock:{k}").Val() != 1 {
		t.Error("the acquire was not executed: the test proves nothing")
	}
	w.replies(nil)
	close(hold)
	wantGone(t, rdb)
}

func TestScriptFlushGoesUnnoticed(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	l := newLocker(t, rdb, core.Watchdog(6*time.Second))
	flush := func() {
		if err := rdb.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	lease := lock(t, l, "k")
	flush()
	deadline := lease.Deadline()
	redistest.Eventually(t, 20*time.Second, func(context.Context) error {
		if !lease.Deadline().After(deadline) {
			return errors.New("not renewed")
		}
		return lease.Err()
	})
	flush()
	release(t, lease)
	flush()
	release(t, lock(t, l, "k"))
	wantGone(t, rdb)
}

func TestLosingTheKeyIsNoticedAndReported(t *testing.T) {
	for name, c := range map[string]struct {
		lose func(context.Context, *redis.Client) error
		want observe.LossReason
	}{
		"DEL":      {func(ctx context.Context, rdb *redis.Client) error { return rdb.Del(ctx, "interlock:{k}").Err() }, observe.LossDeleted},
		"FLUSHALL": {func(ctx context.Context, rdb *redis.Client) error { return rdb.FlushAll(ctx).Err() }, observe.LossDeleted},
		"taken over": {func(ctx context.Context, rdb *redis.Client) error {
			_, err := rdb.TxPipelined(ctx, func(tx redis.Pipeliner) error {
				tx.Del(ctx, "interlock:{k}")
				tx.HSet(ctx, "interlock:{k}", "another:1", 1)
				tx.PExpire(ctx, "interlock:{k}", time.Minute) // it is there when the loss is found
				return nil
			})
			return err
		}, observe.LossTakenOver},
	} {
		for _, found := range []string{"by the watchdog", "by the release"} {
			t.Run(name+", found "+found, func(t *testing.T) {
				srv := redistest.Shared(t)
				rdb := srv.Client(t)
				losses := make(chan core.Loss, 1)
				watchdog := 3 * time.Second
				if found == "by the release" {
					watchdog = time.Minute
				}
				l := newLocker(t, rdb, core.Watchdog(watchdog), core.OnLost(func(x core.Loss) { losses <- x }))
				lease := lock(t, l, "k")
				owners, err := rdb.HKeys(t.Context(), "interlock:{k}").Result()
				if err != nil || len(owners) != 1 {
					t.Fatal(owners, err)
				}
				if err := c.lose(t.Context(), rdb); err != nil {
					t.Fatal(err)
				}
				if found == "by the watchdog" {
					wantErr(t, ended(t, lease, 20*time.Second), core.ErrLost)
					wantErr(t, lease.Err(), core.ErrLost)
				}
				wantErr(t, lease.Release(t.Context()), core.ErrLost)
				if x := <-losses; x.Reason != c.want || x.Key != "k" || x.Token != lease.Token() || x.Owner != owners[0] || x.Held <= 0 {
					t.Errorf("OnLost got %v", x)
				}
				if err := rdb.Del(t.Context(), "interlock:{k}").Err(); err != nil {
					t.Fatal(err)
				}
				next := lock(t, l, "k")
				if next.Token() <= lease.Token() {
					t.Errorf("token %d after %d", next.Token(), lease.Token())
				}
				release(t, next)
			})
		}
	}
}

func TestAKeyThatIsNoLockIsRefusedWithAReason(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	l := newLocker(t, rdb)
	if err := rdb.Set(t.Context(), "interlock:{k}", "mine", 0).Err(); err != nil {
		t.Fatal(err)
	}
	_, err := tryLock(t, l, "k")
	wantErr(t, err, core.ErrKeyOccupied)
	if errors.Is(err, core.ErrUnavailable) {
		t.Errorf("a key that is no lock is said to pass: %v", err)
	}
	if why := core.ReasonOf(t.Context(), err); why != reason.KeyOccupied || (&core.Refusal{Reason: why}).Retryable() {
		t.Errorf("the reason is %q, want one that does not invite to try again", why)
	}
	if err == nil || !strings.Contains(err.Error(), "not a lock") || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Errorf("the error does not say what is wrong: %v", err)
	}
	if rdb.Get(t.Context(), "interlock:{k}").Val() != "mine" {
		t.Error("the value was touched")
	}
	rdb.Del(t.Context(), "interlock:{k}")
	lease := lock(t, l, "k", core.Watchdog(300*time.Millisecond))
	if err := rdb.Set(t.Context(), "interlock:{k}", "mine", 0).Err(); err != nil {
		t.Fatal(err)
	}
	wantErr(t, ended(t, lease, 30*time.Second), core.ErrLost)
	_ = lease.Release(t.Context())
}

func TestReleaseWorksOnADeadContextAndTwice(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	l := newLocker(t, rdb)
	ctx, cancel := context.WithCancel(t.Context())
	lease, err := l.Lock(ctx, "k")
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	for range 2 {
		if err := lease.Release(ctx); err != nil {
			t.Errorf("Release: %v", err)
		}
	}
	wantGone(t, rdb)
}

// The late requests are sent by hand, by their owners' names, as the network
// would deliver them: after everything that came later.
func TestLateRequestsFreeReviveAndShortenNothing(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	store, err := redisstore.New(rdb, redisstore.Timeout(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	ctx := t.Context()
	acquire := func(owner string, ttl time.Duration) driver.Reply {
		t.Helper()
		rep, err := store.Acquire(ctx, driver.AcquireRequest{Key: "k", Owner: owner, TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		return rep
	}
	free := func(owner string) error {
		_, err := store.Release(ctx, driver.ReleaseRequest{
			Key: "k", Owner: owner, TTL: time.Minute, Deadline: time.Now().Add(time.Minute),
		})
		return err
	}
	renew := func(owner string, ttl time.Duration) (got error) {
		store.Renew(ctx, []driver.Renewal{{Key: "k", Owner: owner, TTL: ttl}}, func(_ int, _ bool, err error) { got = err })
		return got
	}
	left := func() time.Duration { return rdb.PTTL(ctx, "interlock:{k}").Val() }

	first := acquire("a:1", time.Minute)
	if err := free("a:1"); err != nil {
		t.Fatal(err)
	}
	second := acquire("b:1", time.Minute)
	if !second.Granted || second.Token <= first.Token {
		t.Fatalf("second grant: %+v after %+v", second, first)
	}
	// A late compensating release, a late TTL command and a late acquire of a:1.
	wantErr(t, free("a:1"), driver.ErrNotOwner)
	wantErr(t, renew("a:1", time.Hour), driver.ErrNotOwner)
	if rep := acquire("a:1", time.Hour); rep.Granted || rep.Holder != "b:1" {
		t.Errorf("a late acquire got %+v", rep)
	}
	if d := left(); d > time.Minute || d < 50*time.Second {
		t.Errorf("somebody else's lease has %v left", d)
	}
	// A late, shorter TTL command and a repeated acquire of the holder itself.
	if err := renew("b:1", time.Second); err != nil {
		t.Error(err)
	}
	if rep := acquire("b:1", time.Second); !rep.Granted || rep.Token != second.Token {
		t.Errorf("a repeated acquire got %+v, want the token %d again", rep, second.Token)
	}
	if d := left(); d < 50*time.Second {
		t.Errorf("a late command shortened the lease to %v", d)
	}
	// An owner is the whole name, not a prefix.
	wantErr(t, free("b:"), driver.ErrNotOwner)
	wantErr(t, free("b:12"), driver.ErrNotOwner)
	if err := free("b:1"); err != nil {
		t.Error(err)
	}
	wantErr(t, free("b:1"), driver.ErrNotOwner)
}

func TestOurOwnLateAcquireIsSweptAway(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	w := newWire()
	l := newLocker(t, srv.Client(t, w.through), core.Watchdog(30*time.Second))
	release(t, lock(t, l, "warm"))
	// Every reply is lost, so the fate of the acquire stays unknown.
	w.replies(func([]byte) error { return errors.New("reply lost by the test") })
	_, err := l.Lock(t.Context(), "k")
	wantErr(t, err, core.ErrUnavailable)
	w.replies(nil)
	begin := time.Now()
	release(t, lock(t, l, "k"))
	if d := time.Since(begin); d > 10*time.Second {
		t.Errorf("an orphan of our own kept us out for %v", d)
	}
	wantGone(t, rdb)
}

func TestRedisUnreachableEndsTheContextBeforeTheTTL(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	const ttl = 2 * time.Second
	l := newLocker(t, srv.Client(t), core.Watchdog(ttl))
	lease := lock(t, l, "k")
	srv.Pause(t)
	// The last renewal can have been confirmed shortly before the pause, so the
	// bound is the TTL from here. A machine that is too busy to run a timer of the
	// test's own then runs none of the watchdog's either.
	control := make(chan time.Time, 1)
	time.AfterFunc(ttl, func() { control <- time.Now() })
	cause := ended(t, lease, 20*time.Second)
	over := time.Now()
	srv.Resume(t)
	wantErr(t, cause, core.ErrLost)
	if late := over.Sub(<-control); late >= ttl/3 {
		t.Errorf("the context ended %v after the end of a %v lease", late, ttl)
	}
	wantErr(t, lease.Release(t.Context()), core.ErrLost)
}

func TestRedisBackWithinTheTTLLosesNothing(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	w := newWire()
	// What is left after the cut is for a machine that stands still.
	l := newLocker(t, srv.Client(t, w.through), core.Watchdog(9*time.Second))
	lease := lock(t, l, "k")
	deadline := lease.Deadline()
	w.cut(true) // every connection broken, new ones refused
	select {
	case <-lease.Context().Done():
		t.Fatal("lost at once")
	case <-time.After(4 * time.Second): // the first renewals fail, from a third of the lease
	}
	w.mend()
	redistest.Eventually(t, 30*time.Second, func(context.Context) error {
		if !lease.Deadline().After(deadline) {
			return errors.New("not renewed yet")
		}
		return nil
	})
	if err := lease.Err(); err != nil {
		t.Error(err)
	}
	release(t, lease)
}

func TestStoreDownIsSaidSoon(t *testing.T) {
	srv := redistest.Start(t)
	l := newLocker(t, srv.Client(t))
	release(t, lock(t, l, "warm"))
	srv.Kill()
	begin := time.Now()
	_, err := l.Lock(t.Context(), "k")
	wantErr(t, err, core.ErrUnavailable)
	if d := time.Since(begin); d > 10*time.Second {
		t.Errorf("it took %v", d)
	}
	srv.Restart(t)
	redistest.Eventually(t, 30*time.Second, func(ctx context.Context) error {
		lease, err := l.TryLock(ctx, "k")
		if err != nil {
			return err
		}
		return lease.Release(ctx)
	})
}

func TestAPausedRedisDoesNotHoldACallerPastItsWait(t *testing.T) {
	srv := redistest.Start(t)
	l := newLockerWithin(t, srv.Client(t), time.Minute) // what it would take otherwise
	release(t, lock(t, l, "warm"))
	srv.Pause(t)
	defer srv.Resume(t)
	begin := time.Now()
	_, err := l.Lock(t.Context(), "k", core.Wait(100*time.Millisecond))
	wantErr(t, err, core.ErrUnavailable)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = l.Lock(ctx, "k2")
	wantErr(t, err, context.DeadlineExceeded)
	if d := time.Since(begin); d > 15*time.Second {
		t.Errorf("it took %v", d)
	}
}

func TestAWaiterHearsOfTheReleaseAfterItsSubscriptionWasKilled(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	holder, waiter := newLocker(t, rdb), newLocker(t, rdb)
	lease := lock(t, holder, "k")
	got := lockLater(t, waiter, "k")
	subscribed := func(ctx context.Context) error {
		n, err := rdb.PubSubNumSub(ctx, "interlock:{k}:free").Result()
		if err != nil || n["interlock:{k}:free"] == 0 {
			return errors.Join(errors.New("nobody listens"), err)
		}
		return nil
	}
	redistest.Eventually(t, 30*time.Second, subscribed)
	for range 3 {
		if err := rdb.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err(); err != nil {
			t.Fatal(err)
		}
		redistest.Eventually(t, 30*time.Second, subscribed)
	}
	// Killed and released in one breath: the message is lost for certain.
	if _, err := rdb.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.ClientKillByFilter(t.Context(), "TYPE", "pubsub")
		p.Del(t.Context(), "interlock:{k}")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-got:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the waiter sleeps on a free key")
	}
	wantErr(t, lease.Release(t.Context()), core.ErrLost)
}

func TestAWaiterFindsACrashedHoldersLockWithItsTTL(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	l := newLocker(t, rdb)
	// A holder that is no more: nobody renews, nobody will publish.
	if err := rdb.HSet(t.Context(), "interlock:{k}", "dead:1", 1).Err(); err != nil {
		t.Fatal(err)
	}
	rdb.PExpire(t.Context(), "interlock:{k}", time.Second)
	begin := time.Now()
	release(t, lock(t, l, "k"))
	if d := time.Since(begin); d > 10*time.Second {
		t.Errorf("it took %v with a TTL of 1 s", d)
	}
}

func TestReleaseWorksWhenMemoryIsFull(t *testing.T) {
	srv := redistest.Start(t, redistest.Args("--maxmemory-policy", "noeviction"))
	rdb := srv.Client(t)
	l := newLocker(t, rdb)
	lease := lock(t, l, "k")
	if err := rdb.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	_, err := tryLock(t, l, "other")
	wantErr(t, err, core.ErrUnavailable)
	if err == nil || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("the error does not say that memory is full: %v", err)
	}
	release(t, lease)
	if rdb.Exists(t.Context(), "interlock:{k}").Val() != 0 {
		t.Error("the lock stays when memory is full")
	}
	rdb.ConfigSet(t.Context(), "maxmemory", "0")
	release(t, lock(t, l, "other"))
}

func TestHostileKeysNeitherCollideNorLeaveTheirSlot(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	l := newLocker(t, rdb)
	keys := []string{
		"}", "{", "{}", "}{", "a}b", "a{b", `a\)b`, `a\(b`, `\`, `\\`, "a:fence", "a:free", "a}:fence",
		"\x00", "\r\n", "ä€𝄞", " ", "%7D", strings.Repeat("x", 512),
	}
	var leases []*core.Lease
	for _, key := range keys {
		lease, err := tryLock(t, l, key)
		if err != nil {
			t.Errorf("%q collides or fails: %v", key, err)
			continue
		}
		leases = append(leases, lease)
	}
	for _, lease := range leases {
		release(t, lease)
	}
	wantGone(t, rdb)
}

func TestConstructorRefusesWhatCannotKeepALock(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer ring.Close()
	var nilClient *redis.Client
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	for _, c := range []struct {
		name string
		rdb  redis.UniversalClient
		opts []redisstore.Option
		says string
	}{
		{"nil", nil, nil, "nil"},
		{"typed nil", nilClient, nil, "nil"},
		{"ring", ring, nil, "Ring"},
		{"prefix with brace", rdb, []redisstore.Option{redisstore.Prefix("a{b")}, "braces"},
		{"empty prefix", rdb, []redisstore.Option{redisstore.Prefix("")}, "empty"},
		{"timeout", rdb, []redisstore.Option{redisstore.Timeout(0)}, "at least 10ms"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := redisstore.New(c.rdb, c.opts...)
			wantErr(t, err, core.ErrConfig)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v does not say %q", err, c.says)
			}
		})
	}
}
