package redisstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

// replicated makes a locker that asks for the replicas' acknowledgement.
func replicated(t *testing.T, srv *redistest.Server, n int, within, lease time.Duration, opts ...redisstore.Option) *core.Locker {
	t.Helper()
	opts = append(opts, redisstore.Replicas(n, within))
	store, err := redisstore.New(srv.Client(t), opts...)
	if err != nil {
		t.Fatal(err)
	}
	l, err := core.New(store, core.Watchdog(lease))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = l.Close(context.Background())
		_ = store.Close()
	})
	return l
}

func TestALockIsTakenOnlyWhenItsReplicasHaveIt(t *testing.T) {
	set := redistest.Replicated(t, 2)
	rdb := set.Master.Client(t)
	const soon = 3 * time.Second // they answer at once, if the machine lets them
	const long = 9 * time.Second
	all := replicated(t, set.Master, 2, soon, long)
	share(t, []*core.Locker{all, replicated(t, set.Master, 1, soon, long)}, someKeys(2), 25)

	lease := lock(t, all, "k")
	for _, replica := range set.Replicas {
		if n := replica.Client(t).Exists(t.Context(), "interlock:{k}").Val(); n != 1 {
			t.Error("a replica does not have the lock that it acknowledged")
		}
	}
	release(t, lease)

	set.Replicas[0].Pause(t)
	_, err := replicated(t, set.Master, 2, 100*time.Millisecond, long).Lock(t.Context(), "k")
	wantErr(t, err, core.ErrNotReplicated)
	redistest.Eventually(t, 20*time.Second, func(ctx context.Context) error {
		if rdb.Exists(ctx, "interlock:{k}").Val() != 0 {
			return errors.New("a lock that was refused is still there")
		}
		return nil
	})
	release(t, lock(t, replicated(t, set.Master, 1, soon, long), "k")) // one is enough for this one
	set.Replicas[0].Resume(t)
	redistest.Eventually(t, 10*time.Second, func(ctx context.Context) error {
		l, err := all.Lock(ctx, "k")
		if err != nil {
			return err
		}
		return l.Release(ctx)
	})
}

func TestARenewalWithoutItsReplicasCountsAsFailed(t *testing.T) {
	t.Parallel()
	set := redistest.Replicated(t, 1)
	l := replicated(t, set.Master, 1, 3*time.Second, 3*time.Second, redisstore.ReplicatedRenewals())
	lease := lock(t, l, "k")
	set.Replicas[0].Pause(t)
	defer set.Replicas[0].Resume(t)
	wantErr(t, ended(t, lease, 20*time.Second), core.ErrLost)
	_ = lease.Release(t.Context())
}

func TestReplicaOptionsAreChecked(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	for _, opt := range []redisstore.Option{
		redisstore.Replicas(0, time.Second), redisstore.Replicas(1, 0), redisstore.ReplicatedRenewals(),
	} {
		_, err := redisstore.New(rdb, opt)
		wantErr(t, err, core.ErrConfig)
	}
}
