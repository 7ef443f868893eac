package core_test

import (
	"context"
	"fmt"
	"log"

	"github.com/interlock-go/interlock/core"
)

// An adapter (httplock, ginlock, echolock, grpclock) makes a Request of its
// framework's own and calls Guard.Do; here a map stands for the framework.
func ExampleSerialize() {
	locker, err := core.New(newFake()) // in earnest: a redisstore
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(context.Background())

	transfer := core.Serialize(locker, "account/{from}", core.And("account/{to}"))

	refusal := transfer.Do(context.Background(), request{"from": "b", "to": "a"}, func(ctx context.Context) bool {
		fmt.Println("under the locks of", core.LeaseFromContext(ctx).Keys())
		return true // the client has been answered
	})
	fmt.Println("refused:", refusal != nil)

	refusal = transfer.Do(context.Background(), request{"from": "b", "to": ""}, func(context.Context) bool {
		fmt.Println("never reached")
		return true
	})
	fmt.Println("refused:", refusal.Reason)
	// Output:
	// under the locks of [account/a account/b]
	// refused: false
	// refused: bad-key
}

// A batch job takes the lock that the handlers of /accounts/{id} take.
func ExampleKey() {
	locker, err := core.New(newFake()) // in earnest: a redisstore
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(context.Background())

	key, err := core.Key("account", "a/b") // account/{id}
	if err != nil {
		log.Fatal(err)
	}
	err = locker.Do(context.Background(), key, func(context.Context) error {
		fmt.Println("under the lock of", key)
		return nil
	})
	fmt.Println(err)

	_, err = core.Key("account", "")
	fmt.Println(err)
	// Output:
	// under the lock of account/a%2Fb
	// <nil>
	// interlock: bad lock key: segment 2 of 2 is empty
}
