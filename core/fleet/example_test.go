package fleet_test

import (
	"context"
	"fmt"
	"log"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/redisstore"
)

// Which locks are held, by all processes.
func Example() {
	server, err := miniredis.Run() // your Redis
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
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
	defer locker.Close(context.Background())
	lease, err := locker.Lock(context.Background(), "account/42")
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release(context.Background())

	all, err := fleet.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer all.Close()
	for lock, err := range all.Locks(context.Background(), "account/*") {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(lock.Key, lock.Kind, lock.Held, lock.Holders[0].Token == lease.Token())
	}
	// Output: account/42 exclusive 1 true
}

// Each new leader, for a process that does not lead.
func ExampleFleet_Follow() {
	store := memstore.New() // your store
	locker, err := core.New(store, core.Service("mailer", ""))
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(context.Background())
	lease, err := locker.Lock(context.Background(), "leader/mailer") // core.Lead, in another process
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release(context.Background())

	all, err := fleet.On(store)
	if err != nil {
		log.Fatal(err)
	}
	defer all.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	for lock, err := range all.Follow(ctx, "leader/mailer") {
		if err == nil && lock.Held == 1 {
			fmt.Println("a leader", lock.Holders[0].Token == lease.Token())
			stop()
		}
	}
	// Output: a leader true
}
