package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/memstore"
)

// A test of code that takes a lock needs no server.
func Example() {
	store := memstore.New()
	locker, err := core.New(store)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	defer locker.Close(ctx)

	free := store.Take("account/42", time.Minute) // another process is at work
	_, err = locker.TryLock(ctx, "account/42")
	fmt.Println("busy:", errors.Is(err, core.ErrHeld))

	free()
	lease, err := locker.Lock(ctx, "account/42")
	fmt.Println("locked:", err == nil)

	store.Expire("account/42") // the server loses the lock
	fmt.Println("lost:", errors.Is(lease.Release(ctx), core.ErrLost))
	// Output:
	// busy: true
	// locked: true
	// lost: true
}

// A test of an idempotent endpoint, or of a function with an idempotency key, needs no
// server either.
func Example_idempotency() {
	store := memstore.New()
	engine, err := idempotency.New(store, idempotency.Global())
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	defer engine.Close(ctx)

	balance := 100
	pay := func(_ context.Context, amount int) (string, error) {
		balance -= amount
		return fmt.Sprint("the balance is ", balance), nil
	}
	for range 2 { // the client sends the payment twice
		fmt.Println(once.Do(ctx, engine, "payment/1", 30, pay))
	}
	fmt.Println("records:", len(store.Records()), "commits:", store.Requests(memstore.Commit))

	_, err = once.Do(ctx, engine, "payment/2", 30, func(ctx context.Context, amount int) (string, error) {
		store.TakeClaims(time.Minute) // this process stood still, and another one has taken over
		return pay(ctx, amount)
	})
	fmt.Println("in flight elsewhere:", errors.Is(err, idempotency.ErrInFlight))

	store.Empty() // the server comes back without its data, and so without the record
	fmt.Println(once.Do(ctx, engine, "payment/1", 30, pay))
	// Output:
	// the balance is 70 <nil>
	// the balance is 70 <nil>
	// records: 1 commits: 1
	// in flight elsewhere: true
	// the balance is 10 <nil>
}

// Intercept makes faults that a server has only rarely.
func ExampleStore_Intercept() {
	store := memstore.New()
	locker, err := core.New(store)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	defer locker.Close(ctx)

	store.Intercept(func(r memstore.Request) memstore.Fault {
		if r.Op == memstore.Acquire {
			return memstore.Unreachable
		}
		return memstore.Fault{}
	})
	_, err = locker.Lock(ctx, "account/42")
	fmt.Println("unavailable:", errors.Is(err, core.ErrUnavailable))
	// Output:
	// unavailable: true
}
