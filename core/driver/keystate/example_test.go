package keystate_test

import (
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/keystate"
)

// A lock that becomes free is kept for the first of the lockers that wait.
func ExampleRecord() {
	var r keystate.Record
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	ask := func(locker string) driver.Reply {
		reply, _ := r.Acquire(driver.AcquireRequest{
			Owner: locker + ":1", TTL: time.Minute, Waiter: driver.NewWaiter(locker, driver.Exclusive, 20*time.Millisecond),
		}, now)
		return reply
	}

	ask("a")
	fmt.Println(ask("b").Holder, ask("c").Holder)
	_, notices, err := r.Release(driver.ReleaseRequest{Owner: "a:1"}, func(string) bool { return false }, now)
	for _, c := range notices.Calls {
		fmt.Println(c.To, c.In, err)
	}
	fmt.Println(ask("c").TTL) // until its turn
	fmt.Println(ask("b").Granted, r.Waiting())
	// Output:
	// a:1 a:1
	// b 0s <nil>
	// c 20ms <nil>
	// 20ms
	// true c~e
}
