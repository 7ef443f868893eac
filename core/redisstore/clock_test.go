//go:build integration

package redisstore_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// Redis counts by its wall clock. When that is set back by an hour, what ends in some milliseconds
// ends an hour later. A lock that nobody holds must not be kept for so long.
func TestNothingIsKeptForLongerWhenTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	const step = time.Hour
	w := common(t)
	s := w.store()
	ask := func(key, waiter string, kind driver.Kind) driver.AcquireRequest {
		req := w.held(key, waiter+":2")
		req.Waiter, req.Kind = driver.Waiter(waiter+"~a"), kind
		return req
	}
	granted := func(what string, req driver.AcquireRequest) {
		t.Helper()
		w.soon(what, func(context.Context) bool { return w.acquire(s, req).Granted })
	}
	t.Run("the turn of a locker that has died", func(t *testing.T) {
		w.take(s, w.held("turn", "holder:1"))
		for _, name := range []string{"dead", "live"} {
			w.acquire(s, ask("turn", name, driver.Exclusive))
		}
		if err := w.free(s, "turn", "holder:1"); err != nil {
			t.Fatal(err)
		}
		if err := w.rdb.PExpire(t.Context(), w.name("turn"), step).Err(); err != nil {
			t.Fatal(err)
		}
		if rep := w.acquire(s, ask("turn", "live", driver.Exclusive)); !rep.Granted && rep.TTL > time.Second {
			t.Errorf("the next locker is to wait for %v; want the patience of the first, 5 ms", rep.TTL)
		}
		granted("the next locker has its turn", ask("turn", "live", driver.Exclusive))
	})
	t.Run("the barrier of an exclusive caller that has died", func(t *testing.T) {
		first, last := w.held("barrier", "shared:1"), w.held("barrier", "shared:2")
		first.Kind, last.Kind = driver.Shared, driver.Shared
		w.take(s, first)
		writer := ask("barrier", "dead", driver.Exclusive)
		writer.Left = time.Second
		w.acquire(s, writer)
		til := strconv.FormatInt(time.Now().Add(step).UnixMilli(), 10)
		if err := w.rdb.HSet(t.Context(), w.name("barrier"), "b", til).Err(); err != nil {
			t.Fatal(err)
		}
		granted("a place is to be had", last)
		// A live exclusive caller asks again, and keeps new places out.
		writer.Waiter, writer.Left = "live~a", time.Minute
		w.acquire(s, writer)
		last.Owner = "shared:3"
		if rep := w.acquire(s, last); rep.Granted {
			t.Error("a new place goes before the exclusive caller that has just asked")
		}
	})
	t.Run("the place of the only waiter, which has died", func(t *testing.T) {
		w.take(s, w.held("only", "holder:1"))
		dead, live := ask("only", "dead", driver.Exclusive), ask("only", "live", driver.Exclusive)
		dead.Line, live.Line = driver.OneWaiter, driver.OneWaiter
		w.acquire(s, dead)
		if err := w.rdb.PExpire(t.Context(), w.name("only")+":waiter", step).Err(); err != nil {
			t.Fatal(err)
		}
		w.soon("another caller may wait", func(context.Context) bool { return !w.acquire(s, live).Out })
	})
}
