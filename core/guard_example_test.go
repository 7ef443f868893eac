package core_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
)

// An adapter (httplock, ginlock, echolock, grpclock) makes a Request of its
// framework's own and calls Guard.Do; here a map stands for the framework.
func ExampleSerialize() {
	locker, err := core.New(memstore.New()) // in earnest: a redisstore
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
	locker, err := core.New(memstore.New()) // in earnest: a redisstore
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

// The commit of a transaction asks first whether the lock is still there. If it is
// not, the deferred Rollback has its way.
func ExampleCommit() {
	store := memstore.New() // in earnest: a redisstore
	locker, err := core.New(store)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(context.Background())

	debit := func(ctx context.Context, tx *transaction) error {
		defer tx.Rollback()
		// ... what changes the account
		return core.Commit(ctx, tx.Commit)
	}

	err = locker.Do(context.Background(), "account/42", func(ctx context.Context) error {
		return debit(ctx, &transaction{})
	})
	fmt.Println(err)

	err = locker.Do(context.Background(), "account/42", func(ctx context.Context) error {
		store.Expire("account/42") // a failover that forgot it
		return debit(ctx, &transaction{})
	})
	fmt.Println("lost:", errors.Is(err, core.ErrLost))
	// Output:
	// committed
	// <nil>
	// rolled back
	// lost: true
}

// transaction stands for a *sql.Tx.
type transaction struct{ over bool }

func (tx *transaction) Commit() error {
	tx.over = true
	fmt.Println("committed")
	return nil
}

func (tx *transaction) Rollback() {
	if !tx.over {
		fmt.Println("rolled back")
	}
}

// No tenant holds more than three accounts at a time in this process, nor waits
// for more than ten.
func ExamplePerPrincipal() {
	locker, err := core.New(memstore.New()) // in earnest: a redisstore
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(context.Background())

	who := func(_ context.Context, req core.Request) (string, error) {
		return req.Header("X-Tenant")[0], nil // as authentication has left it
	}
	debit := core.Serialize(locker, "account/{id}", core.PerPrincipal(who, 3, 10))

	var nest func(n int)
	nest = func(n int) {
		req := request{"X-Tenant": "acme", "id": fmt.Sprint(n)}
		refusal := debit.Do(context.Background(), req, func(context.Context) bool {
			fmt.Println("locked", n)
			nest(n + 1)
			return true
		})
		if refusal != nil {
			fmt.Println("refused", n, refusal.Reason)
		}
	}
	nest(1)
	// Output:
	// locked 1
	// locked 2
	// locked 3
	// refused 4 principal-limit
}
