package casstore_test

import (
	"context"
	"fmt"
	"log"

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
