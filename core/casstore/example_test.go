package casstore_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/casstore/castest"
)

// A locker on a server. In place of the server in memory stands an adapter.
func ExampleNew() {
	store, err := casstore.New(castest.NewMemory(), casstore.Prefix("bank/locks"))
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	locker, err := core.New(store)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(context.Background())

	err = locker.Do(context.Background(), "account/42", func(context.Context) error {
		fmt.Println("alone")
		return nil
	})
	fmt.Println(err)
	// Output:
	// alone
	// <nil>
}

// A process that ends soon waits for longer than the lease: only then it knows that a holder
// has died.
func Example_shortLived() {
	ctx, key := context.Background(), "report/daily"
	store, err := casstore.New(castest.NewMemory())
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	locker, err := core.New(store)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(ctx)
	lease, err := locker.Lock(ctx, key, core.Watchdog(10*time.Second), core.Wait(12*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release(ctx)
	fmt.Println(lease.Key())
	// Output: report/daily
}
