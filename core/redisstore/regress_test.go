package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

// A server that stalls while a connection is set up answers later. Those answers
// must not be taken for the next commands': each key here is held by somebody
// else, so every grant would be a second holder.
func TestAnswersOfASetUpThatTimedOutAreNotTakenForGrants(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	other := newLocker(t, rdb)
	const n = 20
	for i := range n {
		lease := lock(t, other, fmt.Sprint("k", i))
		defer release(t, lease)
	}
	w := newWire()
	store, err := redisstore.New(srv.Client(t, w.through), redisstore.Timeout(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	l, err := core.New(store)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(context.Background())

	// Hold back what the server says to the scripts' loading, past the timeout.
	w.stallAfter("script", 150*time.Millisecond, 4)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			for range 20 { // also after what the first answers may have put out of step
				lease, err := l.Lock(t.Context(), fmt.Sprint("k", i), core.Wait(20*time.Millisecond))
				if err == nil {
					t.Errorf("k%d has two holders", i)
					_ = lease.Release(t.Context())
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestClusterWaitersOfSeveralSlotsHearAgainAfterAReconnect(t *testing.T) {
	t.Parallel()
	set := redistest.Cluster(t, 3, 0)
	rdb := set.Client(t)
	holder, waiter := newLocker(t, rdb), newLocker(t, rdb)
	keys := someKeys(6) // over all three masters, in different slots
	var leases []*core.Lease
	var wg sync.WaitGroup
	for _, key := range keys {
		leases = append(leases, lock(t, holder, key))
		wg.Go(func() {
			l, err := waiter.Lock(t.Context(), key)
			if err != nil {
				t.Error(err)
				return
			}
			if err := l.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	subscribed := func(ctx context.Context) error {
		for _, key := range keys {
			channel := "interlock:{" + key + "}:free"
			node, err := rdb.MasterForKey(ctx, channel)
			if err != nil {
				return err
			}
			if n := node.PubSubShardNumSub(ctx, channel).Val()[channel]; n != 1 {
				return fmt.Errorf("%d subscriptions to %s", n, channel)
			}
		}
		return nil
	}
	redistest.Eventually(t, 30*time.Second, subscribed)
	if err := rdb.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
		return node.ClientKillByFilter(ctx, "TYPE", "pubsub").Err()
	}); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 30*time.Second, subscribed)
	begin := time.Now()
	for _, lease := range leases {
		release(t, lease)
	}
	wg.Wait()
	if d := time.Since(begin); d > 10*time.Second {
		t.Errorf("the waiters heard of the releases after %v", d)
	}
}

func TestAReleaseThatMayNotBeAnnouncedIsARelease(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	if err := rdb.Do(t.Context(), "ACL", "SETUSER", "quiet", "on", ">secret", "~*", "+@all", "resetchannels").Err(); err != nil {
		t.Fatal(err)
	}
	defer rdb.Do(context.Background(), "ACL", "DELUSER", "quiet")
	quiet := srv.Client(t, func(o *redis.Options) { o.Username, o.Password = "quiet", "secret" })
	lease := lock(t, newLocker(t, quiet), "k")
	// Somebody waits, and would have to be told.
	if err := rdb.HSet(t.Context(), "interlock:{k}", "q", "somebody").Err(); err != nil {
		t.Fatal(err)
	}
	release(t, lease)
	if rdb.Exists(t.Context(), "interlock:{k}").Val() != 0 {
		t.Error("it still holds the lock")
	}
	if len(rdb.Do(t.Context(), "ACL", "LOG").Val().([]any)) == 0 {
		t.Error("nothing was refused: the test proves nothing")
	}
}

func TestAWaiterThatCouldNotBeListedAsksFromTimeToTime(t *testing.T) {
	srv := redistest.Start(t, redistest.Args("--maxmemory-policy", "noeviction"))
	rdb := srv.Client(t)
	holder, waiter := newLocker(t, rdb), newLocker(t, rdb)
	lease := lock(t, holder, "k")
	if err := rdb.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	got := lockLater(t, waiter, "k")
	redistest.Eventually(t, 30*time.Second, func(ctx context.Context) error {
		if rdb.PubSubNumSub(ctx, "interlock:{k}:free").Val()["interlock:{k}:free"] == 0 {
			return errors.New("nobody waits")
		}
		return nil
	})
	rdb.ConfigSet(t.Context(), "maxmemory", "0")
	begin := time.Now()
	release(t, lease)
	if err := <-got; err != nil {
		t.Error(err)
	}
	if d := time.Since(begin); d > 10*time.Second {
		t.Errorf("it slept on a free key for %v", d)
	}
}

// A channel is given up after a while without watchers, just when somebody
// watches it again: it must end up subscribed.
func TestAChannelWatchedAgainWhileItIsGivenUpIsHeard(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	holder, waiter := newLocker(t, rdb), newLocker(t, rdb)
	contend := func() {
		lease := lock(t, holder, "k")
		got := lockLater(t, waiter, "k")
		redistest.Eventually(t, 30*time.Second, func(ctx context.Context) error {
			if !rdb.HExists(ctx, "interlock:{k}", "q").Val() {
				return errors.New("nobody waits")
			}
			return nil
		})
		begin := time.Now()
		release(t, lease)
		if err := <-got; err != nil {
			t.Error(err)
		}
		if d := time.Since(begin); d > 10*time.Second { // by asking alone it takes the 30 s of the lease
			t.Fatalf("it heard of the release after %v", d)
		}
	}
	contend()
	redistest.Eventually(t, 30*time.Second, func(ctx context.Context) error {
		if rdb.PubSubNumSub(ctx, "interlock:{k}:free").Val()["interlock:{k}:free"] > 0 {
			return errors.New("still subscribed")
		}
		return nil
	})
	for range 50 {
		contend()
	}
}

// A name that leads to another server since the first was demoted helps only
// who connects anew. go-redis does when a command is refused as READONLY, and
// has to see that also of a call in which it is told of each lock.
func TestRenewalsThatShareCallsLeaveADemotedServer(t *testing.T) {
	t.Parallel()
	set := redistest.Replicated(t, 1)
	var addr atomic.Value
	addr.Store(set.Master.Addr())
	rdb := set.Master.Client(t, func(o *redis.Options) {
		o.Dialer = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, addr.Load().(string))
		}
	})
	l := newLocker(t, rdb, core.Watchdog(12*time.Second))
	var leases []*core.Lease
	for _, key := range someKeys(20) {
		leases = append(leases, lock(t, l, key))
	}
	awaitRenewal(t, leases) // over connections that are there now
	set.AwaitSync(t)
	next := set.Replicas[0]
	demoted, promoted := set.Master.Client(t), next.Client(t)
	host, port, _ := net.SplitHostPort(next.Addr())
	if err := promoted.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	if err := demoted.Do(t.Context(), "REPLICAOF", host, port).Err(); err != nil {
		t.Fatal(err)
	}
	addr.Store(next.Addr())
	awaitRenewal(t, leases)
	for _, lease := range leases {
		release(t, lease)
	}
}

// A client for one server may lead to one of a Cluster that has all slots, or to
// a proxy before several: keys of different slots cannot be in one call there.
func TestLocksOfDifferentSlotsBehindOneAddress(t *testing.T) {
	t.Parallel()
	srv := redistest.Cluster(t, 1, 0).Nodes()[0]
	l := newLocker(t, srv.Client(t), core.Watchdog(6*time.Second))
	takeTogether(t, srv, l)
}

// awaitRenewal waits until each lease was renewed and then again, by the watchdog.
func awaitRenewal(t *testing.T, leases []*core.Lease) {
	t.Helper()
	for range 2 {
		before := make([]time.Time, len(leases))
		for i, lease := range leases {
			before[i] = lease.Deadline()
		}
		redistest.Eventually(t, 20*time.Second, func(context.Context) error {
			for i, lease := range leases {
				if err := lease.Err(); err != nil {
					t.Fatal(err)
				}
				if !lease.Deadline().After(before[i]) {
					return fmt.Errorf("%s is not renewed", lease.Key())
				}
			}
			return nil
		})
	}
}

// An error inside of a list leaves the rest of the list to the next reply, as
// go-redis reads it: a call that shares must bring none.
func TestCallersThatShareCallsWhileMemoryIsFull(t *testing.T) {
	t.Parallel()
	const n = 100
	srv := redistest.Start(t, redistest.Args("--maxmemory-policy", "noeviction"))
	rdb := srv.Client(t)
	other, l := newLocker(t, rdb), newLockerWithin(t, rdb, time.Minute)
	release(t, lock(t, l, "warm"))
	for i := range n / 2 { // every second is held
		defer release(t, lock(t, other, fmt.Sprint("k", 2*i)))
	}
	if err := rdb.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	srv.Pause(t)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			wait := time.Minute // of which an error takes nothing
			if i%2 == 0 {
				wait = 6 * time.Second
			}
			lease, err := l.Lock(t.Context(), fmt.Sprint("k", i), core.Wait(wait))
			switch {
			case err == nil:
				t.Errorf("k%d is granted: %d", i, lease.Token())
				_ = lease.Release(context.Background())
			case i%2 == 0:
				wantErr(t, err, core.ErrHeld)
			default:
				wantErr(t, err, core.ErrUnavailable)
				if !strings.Contains(err.Error(), "OOM") {
					t.Errorf("k%d: %v, want what the server said", i, err)
				}
			}
		})
	}
	redistest.Eventually(t, 10*time.Second, func(context.Context) error {
		if asked := len(l.Held()); asked != n {
			return fmt.Errorf("%d of %d have asked", asked, n)
		}
		return nil
	})
	srv.Resume(t)
	all.Wait()
}
