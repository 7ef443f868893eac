package redisstore_test

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/redisstore"
)

// The Lua of miniredis has no value where a pattern does not match, and Redis has nil. Here a lock is kept
// for a locker that takes no offers. No key ends by itself, so the lock is kept for as long as the test takes.
func TestALockThatIsKeptIsRefusedOnTheEmbeddedServer(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	defer rdb.Close()
	s, err := redisstore.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ask := func(owner string, waiter driver.Waiter) driver.Reply {
		rep, err := s.Acquire(t.Context(), driver.AcquireRequest{
			Key: "k", Owner: owner, TTL: time.Hour, Waiter: waiter, Deadline: time.Now().Add(time.Minute),
		})
		if err != nil {
			t.Fatalf("%s: %v; want an answer", owner, err)
		}
		return rep
	}
	if !ask("a:1", "").Granted {
		t.Fatal("the lock is free; want it granted")
	}
	ask("b:1", driver.NewWaiter("b", driver.Exclusive, time.Second))
	release := driver.ReleaseRequest{Key: "k", Owner: "a:1", TTL: time.Hour, Deadline: time.Now().Add(time.Minute)}
	if _, err := s.Release(t.Context(), release); err != nil {
		t.Fatal(err)
	}
	if rep := ask("c:1", driver.NewWaiter("c", driver.Exclusive, time.Second)); rep.Granted || !rep.Listed {
		t.Errorf("%+v; want c to wait, since the lock is kept for b", rep)
	}
}
