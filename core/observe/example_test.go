package observe_test

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/observe"
)

// counter is an Observer that counts the locks that were refused.
type counter struct{ refused atomic.Int64 }

func (c *counter) Start(ctx context.Context, _ observe.Operation) (context.Context, observe.Observation) {
	return ctx, observe.Observation{
		Acquired: func(a observe.Acquired) {
			if a.Err != nil {
				c.refused.Add(1)
			}
		},
	}
}

// An Observer counts the events that it is interested in.
func Example() {
	c := &counter{}
	locker, err := core.New(memstore.New(), core.WithObserver(c))
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	defer locker.Close(ctx)
	lease, err := locker.Lock(ctx, "account/42")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Release(ctx)
	_, err = locker.TryLock(ctx, "account/42")
	fmt.Println(err)
	fmt.Println("refused:", c.refused.Load())
	// Output:
	// interlock: lock is held elsewhere: "account/42"
	// refused: 1
}
