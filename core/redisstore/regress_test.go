package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
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
	redistest.Eventually(t, 10*time.Second, subscribed)
	if err := rdb.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
		return node.ClientKillByFilter(ctx, "TYPE", "pubsub").Err()
	}); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 10*time.Second, subscribed)
	begin := time.Now()
	for _, lease := range leases {
		release(t, lease)
	}
	wg.Wait()
	if d := time.Since(begin); d > 5*time.Second {
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
	got := make(chan error, 1)
	go func() {
		l, err := waiter.Lock(t.Context(), "k")
		if err == nil {
			err = l.Release(t.Context())
		}
		got <- err
	}()
	redistest.Eventually(t, 5*time.Second, func(ctx context.Context) error {
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
	if d := time.Since(begin); d > 5*time.Second {
		t.Errorf("it slept on a free key for %v", d)
	}
}

// A channel is given up after a while without watchers, just when somebody
// watches it again: it must end up subscribed.
func TestAChannelWatchedAgainWhileItIsGivenUpIsHeard(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	holder, waiter := newLocker(t, rdb), newLocker(t, rdb)
	contend := func() {
		lease := lock(t, holder, "k")
		got := make(chan error, 1)
		go func() {
			l, err := waiter.Lock(t.Context(), "k")
			if err == nil {
				err = l.Release(t.Context())
			}
			got <- err
		}()
		redistest.Eventually(t, 5*time.Second, func(ctx context.Context) error {
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
		if d := time.Since(begin); d > 2*time.Second {
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
