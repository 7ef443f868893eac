package keystate

import (
	"fmt"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// A record does not grow with all lockers that ever had a caller that is Newest.
func TestARecordKnowsTheLastNewestCallersOfABoundedNumberOfLockers(t *testing.T) {
	now := time.UnixMicro(1_800_000_000_000_000)
	var r Record
	r.Acquire(driver.AcquireRequest{Owner: "holder:1", TTL: time.Hour}, now)
	comes := func(i int) driver.Reply {
		rep, _ := r.Stand(driver.AcquireRequest{Waiter: driver.Waiter(fmt.Sprintf("%032x", i)), Line: driver.Newest, Order: 1, TTL: time.Hour}, now)
		r.Decline(fmt.Sprintf("%032x", i), now)
		return rep
	}
	last := int64(0)
	for i := range 1000 {
		rep := comes(i)
		if rep.Out || rep.Number <= last {
			t.Fatalf("the newest caller %d gets %+v; expected is a number above %d", i, rep, last)
		}
		last = rep.Number
	}
	if text, err := r.AppendText(nil); err != nil || len(text) > 7000 {
		t.Errorf("after 1,000 lockers the text of the record has %d bytes (%v); expected are at most 7,000", len(text), err)
	}
	for i := 1000 - lately; i < 999; i++ {
		if rep := comes(i); !rep.Out {
			t.Fatalf("the repeated request of the newest caller %d of 1,000 gets %+v; expected is out", i, rep)
		}
	}
	if rep := comes(999); rep.Out || rep.Number != last {
		t.Errorf("the repeated request of the newest caller of all gets %+v; expected is its number %d", rep, last)
	}
}

// A store without a clock of its own forgets a record that is idle. The numbers of newest callers
// follow the clock.
func TestARecordIsIdleWhenItsNewestCallersAreForgotten(t *testing.T) {
	now := time.UnixMicro(1_800_000_000_000_000)
	var r Record
	r.Acquire(driver.AcquireRequest{Owner: "a:1", TTL: time.Second, Line: driver.Newest, Order: 1, Waiter: "a"}, now)
	if _, _, err := r.Release(driver.ReleaseRequest{Owner: "a:1"}, func(string) bool { return false }, now); err != nil {
		t.Fatal(err)
	}
	if r.Idle(now) {
		t.Error("the record is idle at once; expected is that it knows the newest caller for a minute")
	}
	if !r.Idle(now.Add(2 * time.Minute)) {
		t.Error("the record is not idle two minutes after the newest caller; expected is that a store may forget it")
	}
}
