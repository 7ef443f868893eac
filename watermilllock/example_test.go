package watermilllock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
	"github.com/interlock-go/interlock/watermilllock"
)

// A publisher that does not know whether its message has arrived publishes it again. The
// payment is made once.
func Example() {
	rdb := redistest.ExampleClient() // your Redis
	if err := example(rdb, func() redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: rdb.Options().Addr}) }); err != nil {
		log.Fatal(err)
	}
	// Output:
	// paying 30 EUR under the lock of account/42
	// acknowledged: 2
}

func example(rdb *redis.Client, client func() redis.UniversalClient) error {
	store, err := redisstore.New(rdb)
	if err != nil {
		return err
	}
	defer store.Close()
	locker, err := core.New(store)
	if err != nil {
		return err
	}
	defer locker.Close(context.Background())
	engine, err := idempotency.New(store, idempotency.Global())
	if err != nil {
		return err
	}
	defer engine.Close(context.Background())

	publisher, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: client()}, nil)
	if err != nil {
		return err
	}
	defer publisher.Close()
	subscriber, err := redisstream.NewSubscriber(redisstream.SubscriberConfig{
		Client: client(), ConsumerGroup: "payments", DisableIndefiniteInitialBlock: true,
	}, nil)
	if err != nil {
		return err
	}

	charge := func(msg *message.Message) error {
		if err := idempotency.MarkEffect(msg.Context()); err != nil {
			return err
		}
		fmt.Printf("paying %s under the lock of %s\n", msg.Payload, core.LeaseFromContext(msg.Context()).Key())
		return nil
	}

	router, err := message.NewRouter(message.RouterConfig{}, nil)
	if err != nil {
		return err
	}
	perAccount := core.Serialize(locker, "account/{account}")
	poison, err := middleware.PoisonQueueWithFilter(publisher, "orders.poison", once.Permanent)
	if err != nil {
		return err
	}
	router.AddMiddleware(poison, watermilllock.Idempotent(engine.With(idempotency.Under(perAccount))))
	router.AddConsumerHandler("charge", "orders", subscriber, charge)
	go func() { _ = router.Run(context.Background()) }()
	<-router.Running()
	defer router.Close()

	for range 2 {
		order := message.NewMessage("order-7", []byte("30 EUR"))
		order.Metadata.Set("account", "42")
		if err := publisher.Publish("orders", order); err != nil {
			return err
		}
	}
	for {
		groups, err := rdb.XInfoGroups(context.Background(), "orders").Result()
		if err != nil {
			return err
		}
		if groups[0].EntriesRead == 2 && groups[0].Pending == 0 {
			fmt.Println("acknowledged:", groups[0].EntriesRead)
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
}
