//go:build long && linux

package consensus_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-go/interlock/core"
)

// etcd goes out of space under callers: it executes some of the transactions that it answers
// with "no space". No lock stays that no owner has, and no releases of others are refused.
func TestNoLockStaysWhereEtcdHasNoSpace(t *testing.T) {
	t.Setenv(quotaEnv, "16000000")
	c := newCluster(t)
	client := c.client()
	locker, err := core.New(open(t, client))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := timeout(t, 2*limit)
	defer cancel()
	begun, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	var mu sync.Mutex
	refused, grants := 0, 0
	for i := range 128 {
		all.Go(func() {
			for begun.Err() == nil {
				lease, err := locker.Lock(begun, fmt.Sprint("k", i), core.Watchdog(2*time.Second), core.Wait(time.Second))
				mu.Lock()
				if err == nil {
					grants++
				} else {
					refused++
				}
				mu.Unlock()
				if err == nil {
					_ = lease.Release(ctx) // what fails shows at the end
				}
			}
		})
	}
	value := strings.Repeat("x", 200_000)
	for i := 0; ; i++ {
		if _, err := client.Put(ctx, fmt.Sprint("fill/", i), value); errors.Is(err, rpctypes.ErrNoSpace) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	pause(2 * time.Second)
	stop()
	all.Wait()
	if grants == 0 || refused == 0 {
		t.Errorf("%d grants and %d refusals: the test has gone blind", grants, refused)
	}
	if err := locker.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
	var left []string
	for end := time.Now().Add(limit); time.Now().Before(end); pause(200 * time.Millisecond) {
		there, err := client.Get(ctx, "interlock/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err != nil {
			t.Fatal(err)
		}
		left = nil
		for _, kv := range there.Kvs {
			if strings.HasSuffix(string(kv.Key), "/lock") {
				left = append(left, string(kv.Key))
			}
		}
		if len(left) == 0 {
			return
		}
	}
	t.Errorf("%d locks stay that no owner has: %q", len(left), left)
}
