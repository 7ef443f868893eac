//go:build integration

package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/logtest"
	"github.com/interlock-go/interlock/internal/redistest"
)

// half is a server for each key, of two.
func half(key string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key))
	return int(h.Sum32() % 2) //nolint:gosec // 0 or 1
}

// first has all keys on the first server.
func first(string) int { return 0 }

// sharded is two servers and a proxy that distributes keys over them.
type sharded struct {
	*world
	servers []*redistest.Server
	proxy   *redistest.ShardingProxy
	log     logtest.Log
}

func behindProxy(t *testing.T, of func(string) int) *sharded {
	t.Helper()
	servers := redistest.Independent(t, 2)
	return &sharded{world: worldOf(t, servers[0], "interlock"), servers: servers, proxy: redistest.Sharding(t, servers, of, "HELLO", "SUBSCRIBE")}
}

// store makes a store on the proxy.
func (w *sharded) store(opts ...redisstore.Option) *redisstore.Store {
	w.t.Helper()
	rdb := w.Client(w.t, func(o *redis.Options) { o.Addr = w.proxy.Addr() })
	return w.over(rdb, append(opts, redisstore.Logger(w.log.Logger()))...)
}

// batch takes n locks for a, each by a separate request.
func (w *sharded) batch(s *redisstore.Store, n int) (batch []driver.Renewal) {
	w.t.Helper()
	for i := range n {
		r := driver.Renewal{Key: fmt.Sprint("k", i), Owner: fmt.Sprint("a:", i), TTL: w.Holds()}
		w.take(s, w.held(r.Key, r.Owner))
		batch = append(batch, r)
	}
	return batch
}

// excluded checks that the locks of a batch, for which others ask while the proxy is stopped,
// are granted to none of them.
func (w *sharded) excluded(s *redisstore.Store, batch []driver.Renewal, stop func(while func())) {
	w.t.Helper()
	var asked, twice atomic.Int64
	var all sync.WaitGroup
	ask := func(r driver.Renewal) func() {
		return func() {
			asked.Add(1)
			rep, err := s.Acquire(w.t.Context(), w.held(r.Key, "b:"+r.Key))
			if err != nil {
				w.t.Errorf("%s: %v", r.Key, err)
			}
			if rep.Granted {
				twice.Add(1)
			}
		}
	}
	stop(func() {
		for _, r := range batch {
			all.Go(ask(r))
		}
		w.soon("all have asked", func(context.Context) bool { return asked.Load() == int64(len(batch)) })
	})
	all.Wait()
	if n := twice.Load(); n > 0 {
		w.t.Errorf("%d of %d locks were granted twice", n, len(batch))
	}
}

const severalServers = "several servers have the keys"

// Envoy, Twemproxy, Codis and dynomite send a script to the server of its first key.
func TestBehindAProxyThatDistributesKeysEachLockHasItsOwnCall(t *testing.T) {
	t.Parallel()
	w := behindProxy(t, half)
	s, other := w.store(), w.store()
	batch := w.batch(s, 200)
	w.excluded(other, batch, w.proxy.Stop)
	w.hold(s, batch)
	if n := w.log.Count(severalServers); n != 2 {
		t.Errorf("%d lines of the log say what the address leads to, want one of each store", n)
	}
	found, err := s.Check(t.Context())
	if err != nil || !strings.Contains(strings.Join(found, "\n"), severalServers) {
		t.Errorf("Check: %q, %v", found, err)
	}
}

// An address can lead to a proxy after it has led to a server: each connection is looked at
// before a call goes over it.
func TestAnAddressThatComesToLeadToAProxy(t *testing.T) {
	t.Parallel()
	w := behindProxy(t, first)
	s := w.store()
	w.take(s, w.held("warm", "a:1"))
	holder := &sharded{world: w.world, proxy: redistest.Sharding(t, w.servers, half, "HELLO", "SUBSCRIBE", "SCRIPT")}
	batch := holder.batch(holder.store(), 200)
	w.excluded(s, batch, func(while func()) { w.proxy.Distribute(while, half) })
	if n := w.log.Count(severalServers); n != 1 {
		t.Errorf("%d lines of the log say what the address leads to, want one", n)
	}
}

// Where nearly all keys are on one server, a probe finds that server alone. The answers to
// renewals and releases show the others.
func TestAServerThatHasFewKeysIsFoundByTheAnswers(t *testing.T) {
	t.Parallel()
	for what, do := range map[string]func(w *sharded, s *redisstore.Store, batch []driver.Renewal){
		"renewals": func(w *sharded, s *redisstore.Store, batch []driver.Renewal) {
			s.Renew(w.t.Context(), batch, func(i int, _ bool, err error) {
				if err != nil {
					w.t.Errorf("renewing %s: %v", batch[i].Key, err)
				}
			})
		},
		"releases": func(w *sharded, s *redisstore.Store, batch []driver.Renewal) {
			var begun atomic.Int64
			var all sync.WaitGroup
			w.proxy.Stop(func() {
				for _, r := range batch {
					all.Go(func() {
						begun.Add(1)
						if err := w.free(s, r.Key, r.Owner); err != nil {
							w.t.Errorf("releasing %s: %v", r.Key, err)
						}
					})
				}
				w.soon("all have begun", func(context.Context) bool { return begun.Load() == int64(len(batch)) })
			})
			all.Wait()
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := behindProxy(t, func(key string) int {
				if strings.HasSuffix(key, "{k7}") {
					return 1
				}
				return 0
			})
			s := w.store()
			// The answers show it as soon as one call has keys of both servers.
			w.soon("the store knows", func(context.Context) bool {
				do(w, s, w.batch(s, 100))
				return w.log.Count(severalServers) == 1
			})
		})
	}
}

func TestWithTheOptionNoCallIsShared(t *testing.T) {
	t.Parallel()
	const n = 50
	w := alone(t)
	s := w.over(w.Client(t), redisstore.Sharded())
	w.take(s, w.held("warm", "a:1"))
	w.ResetStats(t)
	_, errs := w.together(s, n)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if calls := w.Calls(t)["evalsha"]; calls != n {
		t.Errorf("%d calls for %d locks", calls, n)
	}
}
