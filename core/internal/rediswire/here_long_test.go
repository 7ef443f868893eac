//go:build integration && long

package rediswire

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/redistest"
)

// cancelsFlag is how often TestCallersThatLeaveAtRandomLeaveNothing cancels.
var cancelsFlag = flag.Int("cancels", 300, "`number` of acquires whose context is cancelled while they are under way")

func TestALoneCallerOfAClusterSendsByItself(t *testing.T) {
	t.Parallel()
	w := &writes{}
	s := newStore(t, redistest.Cluster(t, 3, 0).Client(t, func(o *redis.ClusterOptions) { o.Dialer = w.dial }))
	sendsByItself(t, s, w)
}

// A request may be interrupted before the connection has it, under way, while its reply is
// read, and after that.
func TestCallersThatLeaveAtRandomLeaveNothing(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	s := newStore(t, rdb)
	l, err := core.New(s, core.Unlisted())
	if err != nil {
		t.Fatal(err)
	}
	q := s.requests.direct
	var most int64
	var granted, cancelled int
	span := 300 * time.Microsecond // follows the machine, so that a part of the callers is granted their locks
	for i := range *cancelsFlag {
		q.mu.Lock()
		q.notHere = time.Time{} // each has its chance to be interrupted
		q.mu.Unlock()
		ctx, cancel := context.WithCancel(t.Context())
		var both sync.WaitGroup
		end := time.Now().Add(rand.N(span))
		both.Go(func() {
			for time.Now().Before(end) {
				runtime.Gosched() // a sleep would take longer
			}
			cancel()
		})
		switch lease, err := l.Lock(ctx, fmt.Sprint("k", i%7)); {
		case err == nil:
			granted++
			span -= span / 8
			if err := lease.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		case errors.Is(err, context.Canceled):
			cancelled++
			span += span / 8
		default:
			t.Fatal(err)
		}
		both.Wait()
		if i%100 == 0 {
			most = max(most, connections(t, rdb))
		}
	}
	t.Logf("%d granted, %d cancelled, at most %d connections", granted, cancelled, most)
	if granted == 0 || cancelled == 0 {
		t.Errorf("%d granted, %d cancelled", granted, cancelled)
	}
	// Connections of the pipelines, of renewals, of subscriptions and of this test; and of
	// each pipeline a connection that the server has not seen closed yet.
	if most > 2*maxPipelines+maxRenewing+4 {
		t.Errorf("%d connections", most)
	}
	if err := l.Close(t.Context()); err != nil { // it settles the rest
		t.Error(err)
	}
	redistest.Eventually(t, time.Minute, func(context.Context) error {
		keys, err := rdb.Keys(t.Context(), "interlock:*").Result()
		for _, key := range keys {
			if !strings.HasSuffix(key, fenceSuffix) {
				err = errors.Join(err, fmt.Errorf("%s is left", key))
			}
		}
		return err
	})
}

func connections(t *testing.T, rdb *redis.Client) int64 {
	t.Helper()
	list, err := rdb.ClientList(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	return int64(strings.Count(list, "\n"))
}
