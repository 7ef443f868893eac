package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core"
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
