package driver_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
)

// A store refuses a try of a second owner, and grants it after the release, with a
// greater token.
func ExampleStore() {
	var store driver.Store = memstore.New()
	ctx := context.Background()
	try := func(owner string) driver.Reply {
		reply, err := store.Acquire(ctx, driver.AcquireRequest{Key: "account/42", Owner: owner, TTL: time.Minute})
		if err != nil {
			log.Fatal(err)
		}
		return reply
	}

	first := try("a")
	refused := try("b")
	fmt.Println(first.Granted, refused.Granted, refused.Holder)
	_, err := store.Release(ctx, driver.ReleaseRequest{Key: "account/42", Owner: "a", Token: first.Token, TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	second := try("b")
	fmt.Println(second.Granted, second.Token > first.Token)
	// Output:
	// true false a
	// true true
}
