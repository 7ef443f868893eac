package driver_test

import (
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// A release calls a locker with the time that those before it may take.
func TestTheCallOfALockerSaysWhenItsTurnComes(t *testing.T) {
	const ms, no = time.Millisecond, time.Duration(-1)
	for _, c := range []struct {
		list   driver.Waiters
		free   int
		in     time.Duration // of x; negative: it is not called
		others bool
	}{
		{"x~a", 0, 0, false},
		{"x~a,b~a", 0, 0, true},
		{"a~b,x~a", 0, 7 * ms, false},
		{"a~b,b~a,x~a,c~a", 0, 12 * ms, true},
		{"a,x", 0, 5 * ms, false}, // without a patience it has the least one
		{"a~q,b~q,c~q,d~q,x~a", 0, 4 * 1000 * ms, false},
		{"a~q,b~q,c~q,d~q,e~q,x~a", 0, 4 * 1000 * ms, false}, // the lock is kept no longer
		{"a~A,x~a", 0, driver.OfferLasts, false},             // it has an offer
		{"x~A,b~a", 0, no, true},
		{"b~a", 0, no, false},
		{"a~b,+x~a", 0, 7 * ms, true},
		{"+a~b,+x~a", 0, 0, false}, // they go together
		{"+a~b,+x~a,b~a", 0, 0, true},
		{"+a~b,+b~c,x~a", 0, 10 * ms, false}, // and the longest counts
		{"+a~b,b~a,+c~a,+x~a", 0, 12 * ms, true},
		{"+x~a,+b~a", 1, 0, true},
		{"+x~a,+b~a", 2, 0, false},
		{"+a~a,+x~a", 1, no, true},
		{"+a~a,b~a,+x~a", 3, no, true},
		{"b~a,+x~a", 2, no, true},
	} {
		call, called := c.list.Call("x", c.free)
		if want := c.in >= 0; called != want || called && (call.In != c.in || call.Others != c.others || call.What != driver.Turn) {
			t.Errorf("%q, %d free: the call of x is %+v, %v; want it in %v, others %v", c.list, c.free, call, called, c.in, c.others)
		}
	}
	if call, called := driver.Waiters("").Call("x", 0); !called || call.What != driver.Unsure {
		t.Errorf("without a list the call is %+v, %v; want that the store is not sure", call, called)
	}
}
