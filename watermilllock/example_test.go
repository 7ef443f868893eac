package watermilllock_test

import (
	"context"
	"fmt"
	"log"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/watermilllock"
)

// A publisher that does not know whether its message has arrived publishes it again. The
// payment is made once.
func Example() {
	if err := example(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// paying 30 EUR under the lock of account/42
	// acknowledged
	// acknowledged
}

func example() error {
	ctx := context.Background()
	store := memstore.New() // in place of redisstore.New or pgstore.New
	locker, err := core.New(store)
	if err != nil {
		return err
	}
	defer locker.Close(ctx)
	engine, err := idempotency.New(store, idempotency.Global())
	if err != nil {
		return err
	}
	defer engine.Close(ctx)

	// In place of Kafka, AMQP or Redis streams. Publish waits for the acknowledgement.
	pubsub := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, nil)
	publisher, subscriber := pubsub, pubsub
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
	go func() { _ = router.Run(ctx) }()
	<-router.Running()
	defer router.Close()

	for range 2 {
		order := message.NewMessage("order-7", []byte("30 EUR"))
		order.Metadata.Set("account", "42")
		if err := publisher.Publish("orders", order); err != nil {
			return err
		}
		fmt.Println("acknowledged")
	}
	return nil
}
