package castest_test

import (
	"context"
	"fmt"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/casstore/castest"
)

// A network that loses the answer: the transaction was executed all the same.
func ExampleLink() {
	server := castest.NewMemory()
	link := &castest.Link{Server: server, Meet: func(*casstore.Txn) castest.Fault { return castest.Fault{Broken: true} }}
	create := casstore.Txn{
		If:   []casstore.Condition{{Name: "name"}}, // it is not there
		Then: []casstore.Op{{Name: "name", Value: "value"}},
	}
	_, err := link.Commit(context.Background(), create)
	fmt.Println(err)
	again, _ := server.Commit(context.Background(), create)
	fmt.Println(again.Done, len(server.Entries()))
	// Output:
	// castest: the connection is broken
	// false 1
}
