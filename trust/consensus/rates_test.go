//go:build long && linux

package consensus_test

import (
	"context"
	"flag"
	"fmt"
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

// measure is for how long each rate is measured: go test -args -measure 5s.
var measure = flag.Duration("measure", 300*time.Millisecond, "for how long each rate is measured")

// pair takes a lock and gives it up.
type pair func(ctx context.Context, caller int, key string) error

// A process that is busy, or whose callers want one key, costs etcd less with this store
// than with the mutex of etcd's client. Times are logged, and requests are compared: they do
// not depend on the machine.
func TestRequestsOfPairsBesideTheMutexOfEtcd(t *testing.T) {
	c := newCluster(t)
	var requests atomic.Int64
	client := func() *clientv3.Client {
		var addrs []string
		for _, m := range c.members {
			addrs = append(addrs, m.addr)
		}
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
	ours, theirs := interlockPair(t, client()), mutexPair(t, client())
	for _, part := range []struct {
		callers, keys int
		least         float64 // how many times fewer requests a pair takes
	}{{1, 1, 1}, {16, 16, 1}, {256, 256, 2}, {16, 1, 20}} {
		name := fmt.Sprintf("%d callers of %d keys", part.callers, part.keys)
		var perPair, rate [2]float64
		for i, one := range []pair{ours, theirs} {
			before, begin := requests.Load(), time.Now()
			n := keep(t, part.callers, part.keys, one)
			perPair[i] = float64(requests.Load()-before) / float64(n)
			rate[i] = float64(n) / time.Since(begin).Seconds()
		}
		t.Logf("%s: interlock %.0f pairs a second, %.2f requests a pair; concurrency.Mutex %.0f, %.2f", name, rate[0], perPair[0], rate[1], perPair[1])
		if perPair[1] < part.least*perPair[0]*0.95 {
			t.Errorf("%s: %.2f requests a pair, and the mutex takes %.2f", name, perPair[0], perPair[1])
		}
	}
}

// keep has callers take locks for a while, and returns how many pairs that were.
func keep(t *testing.T, callers, keys int, one pair) int64 {
	t.Helper()
	var n atomic.Int64
	var all sync.WaitGroup
	end := time.Now().Add(*measure)
	for i := range callers {
		all.Go(func() {
			for done := false; !done; done = !time.Now().Before(end) { // at least one
				if err := one(t.Context(), i, fmt.Sprint("rate-", i%keys)); err != nil {
					t.Error(err)
					return
				}
				n.Add(1)
			}
		})
	}
	all.Wait()
	return n.Load()
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
