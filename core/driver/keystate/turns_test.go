package keystate

import (
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// A caller that is Newest goes before all lockers that wait. If its process does not say how long it
// may take, no turn behind it is known, and the locker with the offer has its lock nevertheless.
func TestALockerTakesItsOfferBehindANewestCallerWithoutAPatience(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	var r Record
	if rep, _ := r.Acquire(driver.AcquireRequest{Owner: "a:1", TTL: time.Minute}, now); !rep.Granted {
		t.Fatalf("a free lock is not granted: %+v", rep)
	}
	b := driver.NewWaiter("b", driver.Exclusive, time.Second).TakingOffers()
	r.Acquire(driver.AcquireRequest{Owner: "b:1", TTL: time.Minute, Waiter: b, Left: time.Minute}, now)
	_, n, err := r.Release(driver.ReleaseRequest{Owner: "a:1"}, func(string) bool { return true }, now)
	if err != nil || len(n.Calls) != 1 || n.Calls[0].To != "b" || n.Calls[0].What != driver.Offered {
		t.Fatalf("the release calls %+v (%v); want an offer to the locker b, which waits and takes offers", n.Calls, err)
	}
	newest := driver.AcquireRequest{Owner: "c:1", TTL: time.Minute, Waiter: "c", Left: time.Minute, Line: driver.Newest}
	if rep, _ := r.Acquire(newest, now); rep.Granted || r.Waiting() != "c,"+driver.List(b) {
		t.Fatalf("a newest caller beside the offer gets %+v, and the list is %q; want a refusal, and c before b", rep, r.Waiting())
	}
	rep, _ := r.Acquire(driver.AcquireRequest{Owner: "b:2", TTL: time.Minute, Waiter: b, Offer: n.Calls[0].Token}, now)
	if !rep.Granted || r.Waiting() != "c" {
		t.Errorf("the locker with the offer gets %+v, and the list is %q; want the lock, and c alone in the list", rep, r.Waiting())
	}
}
