package alongside_test

import (
	"context"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/alongside"
	"github.com/interlock-go/interlock/core/memstore"
)

// The function runs while both locks are held: the lock of this library, and inside it
// the lock that processes of the old release take.
func ExampleDo() {
	locker, err := core.New(memstore.New())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locker.Close(context.Background())

	say := func(what string) func(context.Context) error {
		return func(context.Context) error {
			fmt.Println(what)
			return nil
		}
	}
	other := alongside.Lock{
		Lease:   8 * time.Second,
		Acquire: say("the other lock is taken"),
		Renew:   say("the other lock lasts for 8 s from now"),
		Release: say("the other lock is released"),
	}
	settle := say("alone, together with the old release and the new")

	err = locker.Do(context.Background(), "account/42", func(ctx context.Context) error {
		return alongside.Do(ctx, other, settle)
	})
	fmt.Println(err)
	// Output:
	// the other lock is taken
	// the other lock lasts for 8 s from now
	// alone, together with the old release and the new
	// the other lock is released
	// <nil>
}
