//go:build integration

package rediswire

import (
	"fmt"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/internal/redistest"
)

// The key does not grow with all lockers that ever had a caller that is Newest.
func TestTheLastNewestCallersOfABoundedNumberOfLockersAreKept(t *testing.T) {
	t.Parallel()
	srv, prefix := redistest.Common(t)
	rdb := srv.Client(t, patiently)
	s := open(t, rdb, func(c *Config) { c.Prefix = prefix })
	defer s.Close()
	comes := func(i int) driver.Reply {
		rep, err := s.Stand(t.Context(), driver.AcquireRequest{
			Key: "k", Waiter: driver.Waiter(fmt.Sprintf("%032x", i)), Line: driver.Newest, Order: 1, TTL: time.Hour,
		})
		if err != nil {
			t.Fatal(err)
		}
		return rep
	}
	last := int64(0)
	for i := range 100 {
		rep := comes(i)
		if rep.Out || rep.Number <= last {
			t.Fatalf("the newest caller %d gets %+v; expected is a number above %d", i, rep, last)
		}
		last = rep.Number
	}
	if n := rdb.HLen(t.Context(), s.names.lock("k")+newestSuffix).Val(); n != 64 {
		t.Errorf("after 100 lockers the hash has %d fields; expected are the number and 63 lockers", n)
	}
	for i := 37; i < 99; i++ {
		if rep := comes(i); !rep.Out {
			t.Fatalf("the repeated request of the newest caller %d of 100 gets %+v; expected is out", i, rep)
		}
	}
	if rep := comes(99); rep.Out || rep.Number != last {
		t.Errorf("the repeated request of the newest caller of all gets %+v; expected is its number %d", rep, last)
	}
}
