package redisstore_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/redisstore"
)

func Example() {
	server, err := miniredis.Run() // your Redis
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	rdb := redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs: []string{server.Addr()}, ContextTimeoutEnabled: true, ReadTimeout: time.Second,
	})
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
	fmt.Println(rdb.Exists(context.Background(), "interlock:{account/42}").Val())
	_ = lease.Release(context.Background())
	fmt.Println(rdb.Exists(context.Background(), "interlock:{account/42}").Val())
	// Output:
	// 1
	// 0
}
