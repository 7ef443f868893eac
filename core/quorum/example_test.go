package quorum_test

import (
	"context"
	"fmt"
	"log"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/quorum"
)

func Example() {
	addrs := []string{"redis-a:6379", "redis-b:6379", "redis-c:6379"}
	nodes := []redis.UniversalClient{
		redis.NewClient(&redis.Options{Addr: addrs[0]}),
		redis.NewClient(&redis.Options{Addr: addrs[1]}),
		redis.NewClient(&redis.Options{Addr: addrs[2]}), // better five
	}
	for _, rdb := range nodes {
		defer rdb.Close()
	}
	store, err := quorum.New(nodes)
	if err != nil {
		log.Print(err)
		return
	}
	defer store.Close()
	locker, err := core.New(store)
	if err != nil {
		log.Print(err)
		return
	}
	defer locker.Close(context.Background())

	lease, err := locker.Lock(context.Background(), "account/42")
	if err != nil {
		log.Print(err)
		return
	}
	defer lease.Release(context.Background())
	fmt.Println("the fencing token is", lease.Token())
}

func ExampleNew_evenNumber() {
	var nodes [4]redis.UniversalClient
	_, err := quorum.New(nodes[:])
	fmt.Println(err)
	// Output:
	// interlock: bad configuration: 4 nodes tolerate no more failures than 3; use an odd number of nodes, at least 3
}
