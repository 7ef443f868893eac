package redisfence_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strconv"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/fencing"
	"github.com/interlock-go/interlock/core/fencing/redisfence"
	"github.com/interlock-go/interlock/core/redisstore"
)

// debited is the balance that a debit leaves.
func debited(account map[string]string) string {
	balance, _ := strconv.Atoi(account["balance"])
	return strconv.Itoa(balance - 30)
}

func debit(ctx context.Context, values *redisfence.Values, lease *core.Lease) error {
	hold := redisfence.Hold{Key: "account:42", Token: lease.Token()}
	read, err := values.Claim(ctx, hold)
	if err != nil {
		return err
	}
	err = values.Write(ctx, redisfence.Change{Hold: hold, Set: map[string]string{"balance": debited(read[0])}})
	return err
}

func Example() {
	ctx := context.Background()
	server, err := miniredis.Run() // your Redis
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	store, err := redisstore.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	locker, err := core.New(store)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(ctx)
	values := redisfence.New(rdb)

	// A value is set under the first lease, and changed under the second.
	old, err := locker.Lock(ctx, "account/42")
	if err != nil {
		log.Fatal(err)
	}
	err = values.Set(ctx, redisfence.Change{
		Hold: redisfence.Hold{Key: "account:42", Token: old.Token()},
		Set:  map[string]string{"balance": "100", "owner": "alice"},
	})
	if err != nil {
		log.Fatal(err)
	}
	_ = old.Release(ctx)

	lease, err := locker.Lock(ctx, "account/42")
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release(ctx)
	if err := debit(lease.Context(), values, lease); err != nil {
		log.Fatal(err)
	}
	fmt.Println(rdb.HGet(ctx, "account:42", "balance").Val())

	// A holder that still works under the first lease is refused.
	fmt.Println(errors.Is(debit(ctx, values, old), fencing.ErrStale))
	fmt.Println(rdb.HGet(ctx, "account:42", "balance").Val())
	// Output:
	// 70
	// true
	// 70
}
