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
	"github.com/interlock-go/interlock/internal/redistest"
)

// isolated is a Sentinel set whose first master can be cut off from the sentinels
// and the replicas but not from its clients.
type isolated struct {
	*redistest.SentinelSet
	tb testing.TB
}

// newIsolated gives clients a user of their own, so that the one of sentinels and
// replicas can be turned away.
func newIsolated(tb testing.TB, replicas int, opts ...redistest.Option) *isolated {
	tb.Helper()
	s := &isolated{redistest.Sentinel(tb, replicas, opts...), tb}
	for _, srv := range append(s.Replicas, s.Master) {
		err := srv.Client(tb).Do(tb.Context(), "acl", "setuser", "app", "on", ">secret", "~*", "&*", "+@all").Err()
		if err != nil {
			tb.Fatal(err)
		}
	}
	return s
}

func (s *isolated) client(change ...func(*redis.FailoverOptions)) *redis.Client {
	s.tb.Helper()
	return s.Client(s.tb, append(change, func(o *redis.FailoverOptions) {
		o.Username, o.Password, o.ClientName = "app", "secret", "store"
	})...)
}

// on is a client for one of the servers.
func (s *isolated) on(srv *redistest.Server) *redis.Client {
	s.tb.Helper()
	return srv.Client(s.tb, func(o *redis.Options) { o.Username, o.Password = "app", "secret" })
}

// failOver has a replica promoted while the former master goes on answering.
func (s *isolated) failOver() (promoted *redistest.Server) {
	s.tb.Helper()
	old := s.on(s.Master)
	for _, cmd := range [][]any{{"acl", "setuser", "default", "off"}, {"client", "kill", "user", "default"}} {
		if err := old.Do(s.tb.Context(), cmd...).Err(); err != nil {
			s.tb.Fatal(cmd, err)
		}
	}
	promoted = s.AwaitFailover(s.tb, s.Master)
	if role := old.Do(s.tb.Context(), "role").Val().([]any)[0]; role != "master" {
		s.tb.Fatalf("the former master is a %v", role)
	}
	return promoted
}

// awaitSubscriber waits until a waiter for the key "contended" is told of releases.
func awaitSubscriber(t *testing.T, rdb *redis.Client) {
	t.Helper()
	const channel = "interlock:{contended}:free"
	redistest.Eventually(t, 10*time.Second, func(ctx context.Context) error {
		n, err := rdb.PubSubNumSub(ctx, channel).Result()
		if err == nil && n[channel] == 0 {
			err = errors.New("nothing listens")
		}
		return err
	})
}

// 20 of 20 locks had two holders that trusted them: one on the former master, over
// connections that had stayed, and one on the new.
func TestNoLockHasTwoHoldersAfterAFailoverWhoseOldMasterStillAnswers(t *testing.T) {
	t.Parallel()
	set := newIsolated(t, 1)
	before := newLocker(t, set.client()) // with connections to the former master
	release(t, lock(t, before, "warm"))
	// Its subscription, too.
	held := lock(t, before, "contended")
	waiting, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	waiter := newLocker(t, set.client())
	go func() {
		defer close(gone)
		_, _ = waiter.Lock(waiting, "contended")
	}()
	old := set.on(set.Master)
	awaitSubscriber(t, old)

	promoted := set.failOver()
	begin := time.Now()
	after := newLocker(t, set.client())
	redistest.Eventually(t, 15*time.Second, func(ctx context.Context) error {
		list, err := old.Do(ctx, "client", "list").Text()
		if err != nil {
			return err
		}
		for line := range strings.Lines(list) {
			if strings.Contains(line, "name=store") {
				return fmt.Errorf("a connection to the former master: %s", line)
			}
		}
		return nil
	})
	t.Logf("no connection to the former master %v after the promotion was seen", time.Since(begin))
	for i := range 20 {
		key := fmt.Sprint("key", i)
		first := lock(t, before, key)
		if other, err := tryLock(t, after, key); !errors.Is(err, core.ErrHeld) {
			t.Errorf("%s has two holders: %v, %v", key, other, err)
		}
		release(t, first)
	}
	awaitSubscriber(t, promoted.Client(t))
	cancel()
	<-gone
	_ = held.Release(t.Context())
}

func TestALockIsTakenSoonAfterAFailoverWhoseOldMasterRefusesWrites(t *testing.T) {
	t.Parallel()
	set := newIsolated(t, 2, redistest.Args("--min-replicas-to-write", "1", "--min-replicas-max-lag", "1"))
	l := newLocker(t, set.client())
	again(t, l, "warm", 20*time.Second)
	set.failOver()
	took := again(t, l, "k", 20*time.Second)
	t.Logf("taken %v after the promotion was seen", took)
	for i := range 20 {
		again(t, l, fmt.Sprint("key", i), 20*time.Second) // the replica may be late once more
	}
}
