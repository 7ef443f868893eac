//go:build long && linux

package consensus_test

import (
	"context"
	"fmt"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore"
)

// A busy process, or a process with callers for one key, costs etcd less with this store
// than with the mutex of etcd's client. Times are logged, and requests are compared: they do
// not depend on the machine.
func TestRequestsOfPairsBesideTheMutexOfEtcd(t *testing.T) {
	client, members, count := countedCluster(t)
	locks := [2]pair{interlockPair(t, client()), mutexPair(t, client())}
	for _, part := range []struct {
		callers, keys int
		least         float64 // how many times fewer requests a pair takes
	}{{1, 1, 1}, {16, 16, 1}, {256, 256, 2}, {16, 1, 20}} {
		name := fmt.Sprintf("%d callers of %d keys", part.callers, part.keys)
		all := beside(t, part.callers, part.keys, members, count, locks)
		t.Logf("%s: interlock %v; concurrency.Mutex %v", name, all[0], all[1])
		if ours, theirs := all[0].writesOfAPair(), all[1].writesOfAPair(); theirs < part.least*ours*0.95 {
			t.Errorf("%s: %.2f requests a pair, and the mutex takes %.2f", name, ours, theirs)
		}
	}
}

// countedCluster starts a cluster. client makes a client of it, and count returns the requests of all of
// these.
func countedCluster(t *testing.T) (client func() *clientv3.Client, members []*exec.Cmd, count func() (writes, reads int64)) {
	t.Helper()
	c, requests := newCluster(t), new(atomic.Int64)
	for _, m := range c.members {
		members = append(members, m.cmd)
	}
	return func() *clientv3.Client { return counted(t, allFar(t, c.addrs()), requests) }, members,
		func() (int64, int64) { return requests.Load(), 0 }
}

// counted makes a client of which each request is counted.
func counted(t *testing.T, addrs []string, requests *atomic.Int64) *clientv3.Client {
	t.Helper()
	count := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		requests.Add(1)
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: addrs, Logger: zap.NewNop(), DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(count)},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func TestHoldersAndWaitersAreIdle(t *testing.T) {
	c := newCluster(t)
	var requests [2]atomic.Int64
	idle(t, func(i int) core.Store { return open(t, counted(t, c.addrs(), &requests[i]), casstore.Timeout(limit)) },
		func(i int) int64 { return requests[i].Load() })
}

func interlockPair(t *testing.T, client *clientv3.Client) pair {
	t.Helper()
	locker, err := core.New(open(t, client, casstore.Timeout(limit)), core.Watchdog(time.Minute), core.Unlisted())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Close(context.Background()) })
	return func(ctx context.Context, _ int, key string) error {
		return locker.Do(ctx, key, func(context.Context) error { return nil })
	}
}

// mutexPair has a session for each caller: the mutex is not for two goroutines of a session.
func mutexPair(t *testing.T, client *clientv3.Client) pair {
	t.Helper()
	var mu sync.Mutex
	sessions := map[int]*concurrency.Session{}
	return func(ctx context.Context, caller int, key string) error {
		mu.Lock()
		s := sessions[caller]
		mu.Unlock()
		if s == nil {
			var err error
			if s, err = concurrency.NewSession(client, concurrency.WithTTL(60)); err != nil {
				return err
			}
			mu.Lock()
			sessions[caller] = s
			mu.Unlock()
		}
		m := concurrency.NewMutex(s, "mutex/"+key)
		if err := m.Lock(ctx); err != nil {
			return err
		}
		return m.Unlock(ctx)
	}
}

// Processes that want one key take turns. A release offers the lock to the next process alone, and processes come into
// line without collisions.
func TestRequestsOfGrantsThatManyProcessesWaitForBesideTheMutexOfEtcd(t *testing.T) {
	client, members, count := countedCluster(t)
	for _, processes := range []int{1, 4, 24, 48} {
		locks := [2]pair{processesPair(t, processes, func() core.Store {
			return open(t, client(), casstore.Timeout(limit))
		}), mutexPair(t, client())}
		all := beside(t, processes, 1, members, count, locks)
		t.Logf("%d processes: interlock %v; concurrency.Mutex %v", processes, all[0], all[1])
		if ours := all[0].writesOfAPair(); ours > 6 {
			t.Errorf("%d processes: %.2f requests a grant; want 6 at most", processes, ours)
		}
	}
}

// processesPair has a locker with a separate store for each caller.
func processesPair(t *testing.T, processes int, open func() core.Store) pair {
	t.Helper()
	var lockers []*core.Locker
	for range processes {
		locker, err := core.New(open(), core.Watchdog(time.Minute), core.Unlisted())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = locker.Close(context.Background()) })
		lockers = append(lockers, locker)
	}
	return func(ctx context.Context, caller int, key string) error {
		return lockers[caller].Do(ctx, fmt.Sprint(key, " of ", processes), func(context.Context) error { return nil })
	}
}
