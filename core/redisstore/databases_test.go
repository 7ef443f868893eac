//go:build integration

package redisstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/redisstore"
)

// Keys are of one database, and channels of all databases of a server. A waiting caller must get no
// message about a key of another database.
func TestDatabasesOfOneServerDoNotHearEachOther(t *testing.T) {
	t.Parallel()
	w := alone(t)
	database := func(n int) *redisstore.Store { return w.store(func(o *redis.Options) { o.DB = n }) }
	zero, three := database(0), database(3)
	sub := w.rdb.PSubscribe(t.Context(), "*")
	t.Cleanup(func() { _ = sub.Close() })
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	said := sub.Channel()
	for _, c := range []struct {
		channel  string // of the database 0, or the beginning of those of lockers
		locker   string // of the database 3
		watch    func(s *redisstore.Store, told func()) (stop func())
		announce func(s *redisstore.Store, by string)
	}{
		{
			channel: w.prefix + ":wanted:", locker: "three",
			watch: func(s *redisstore.Store, told func()) func() {
				return s.Calls("three", func(driver.Call) { told() })
			},
			announce: func(s *redisstore.Store, by string) { w.passTo(s, "k", by, driver.Exclusive) },
		},
		{
			channel: w.prefix + ":wanted:", locker: "permits",
			watch: func(s *redisstore.Store, told func()) func() {
				return s.Calls("permits", func(driver.Call) { told() })
			},
			announce: func(s *redisstore.Store, by string) {
				if by == "three" {
					by = "permits" // a locker whose subscription is new
				}
				w.passTo(s, "p", by, driver.Permit)
			},
		},
		{
			channel: w.record("r") + ":done",
			watch: func(s *redisstore.Store, told func()) func() {
				return s.Await("r", time.Now(), told)
			},
			announce: func(s *redisstore.Store, by string) {
				_, err := s.Claim(w.t.Context(), w.claim("r", by))
				_, err2 := s.Claim(w.t.Context(), w.claim("r", "a duplicate that waits"))
				err3 := s.Abandon(w.t.Context(), record.AbandonRequest{ID: "r", Token: by, Deadline: w.deadline()})
				if err := errors.Join(err, err2, err3); err != nil {
					w.t.Error(err)
				}
			},
		},
	} {
		told := make(chan struct{}, 10)
		stop := c.watch(three, func() { told <- struct{}{} })
		await(w, told) // the subscription is confirmed
		of := map[string]string{"zero": c.channel, "three": c.channel + "@3"}
		if c.locker != "" { // it has an id that no other database has
			of = map[string]string{"zero": c.channel + "zero", "three": c.channel + c.locker}
		}
		c.announce(zero, "zero")
		if m := await(w, said); m.Channel != of["zero"] {
			t.Errorf("the database 0 announces on %s, want %s", m.Channel, of["zero"])
		}
		c.announce(three, "three")
		if m := await(w, said); m.Channel != of["three"] {
			t.Errorf("the database 3 announces on %s, want %s", m.Channel, of["three"])
		}
		await(w, told)
		stop()
	}
}

// await returns the next value of a channel.
func await[T any](w *world, from <-chan T) (v T) {
	w.t.Helper()
	select {
	case v = <-from:
	case <-time.After(w.Patience()):
		w.t.Fatal("nothing came")
	}
	return v
}

// passTo takes a lock, enters a locker into its list and releases the lock, so that the
// locker gets the announcement.
func (w *world) passTo(s *redisstore.Store, key, waiter string, kind driver.Kind) {
	w.t.Helper()
	ask := w.held(key, "holder:"+waiter)
	ask.Kind = kind
	if kind.Place() {
		ask.AtMost = 1
	}
	w.take(s, ask)
	late := ask
	late.Owner, late.Waiter = waiter+":1", driver.Waiter(waiter)
	if rep := w.acquire(s, late); rep.Granted || !rep.Listed {
		w.t.Errorf("%q: %+v", key, rep)
	}
	if _, err := s.Release(w.t.Context(), driver.ReleaseRequest{
		Key: key, Owner: ask.Owner, Kind: kind, AtMost: ask.AtMost, TTL: w.Holds(), Deadline: w.deadline(),
	}); err != nil {
		w.t.Errorf("%q: %v", key, err)
	}
}
