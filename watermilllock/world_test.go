package watermilllock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestMain(m *testing.M) {
	// A subscriber that is closed sleeps for half a second more, since its client is closed
	// as well.
	redistest.Main(m, goleak.IgnoreAnyFunction("github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream.(*Subscriber).read"))
}

// patience is for what takes no time on an idle machine.
const patience = 30 * time.Second

// world is a Redis with streams and records on it.
type world struct {
	*testing.T
	srv       *redistest.Server
	rdb       *redis.Client
	publisher message.Publisher
	store     *redisstore.Store
	locker    *core.Locker
	engine    *idempotency.Engine

	// claimAfter is when a message that is not acknowledged goes to another consumer.
	claimAfter time.Duration
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, srv: redistest.Start(t), claimAfter: time.Hour}
	w.rdb = w.srv.Client(t)
	var err error
	w.publisher, err = redisstream.NewPublisher(redisstream.PublisherConfig{Client: w.client()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if w.store, err = redisstore.New(w.rdb); err != nil {
		t.Fatal(err)
	}
	if w.locker, err = core.New(w.store); err != nil {
		t.Fatal(err)
	}
	if w.engine, err = idempotency.New(w.store, idempotency.Global()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := errors.Join(w.engine.Close(ctx), w.locker.Close(ctx), w.store.Close(), w.publisher.Close()); err != nil {
			t.Errorf("closing: %v", err)
		}
	})
	return w
}

// client makes a client that a publisher or a subscriber closes.
func (w *world) client() redis.UniversalClient {
	return redis.NewClient(&redis.Options{Addr: w.srv.Addr()})
}

// process runs a router with one handler, charge, from the topic orders to receipts.
// What is hopeless goes to the topic poison.
func (w *world) process(wrap message.HandlerMiddleware, handle message.HandlerFunc) {
	w.Helper()
	subscriber, err := redisstream.NewSubscriber(redisstream.SubscriberConfig{
		Client: w.client(), ConsumerGroup: "payments", MaxIdleTime: w.claimAfter, ClaimInterval: 20 * time.Millisecond,
		BlockTime: 20 * time.Millisecond, DisableIndefiniteInitialBlock: true,
	}, nil)
	if err != nil {
		w.Fatal(err)
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: patience}, nil)
	if err != nil {
		w.Fatal(err)
	}
	poison, err := middleware.PoisonQueueWithFilter(w.publisher, "poison", once.Permanent)
	if err != nil {
		w.Fatal(err)
	}
	router.AddMiddleware(poison, wrap)
	router.AddHandler("charge", "orders", subscriber, "receipts", keep{w.publisher}, handle)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	<-router.Running()
	w.Cleanup(func() {
		if err := errors.Join(router.Close(), <-ended); err != nil {
			w.Errorf("closing the router: %v", err)
		}
	})
}

// keep is a publisher that outlives a router.
type keep struct{ message.Publisher }

func (keep) Close() error { return nil }

// publish publishes an order.
func (w *world) publish(uuid, payload string, metadata message.Metadata) {
	w.Helper()
	m := message.NewMessage(uuid, []byte(payload))
	for key, value := range metadata {
		m.Metadata.Set(key, value)
	}
	if err := w.publisher.Publish("orders", m); err != nil {
		w.Fatal(err)
	}
}

// consumed waits until n messages of the topic orders were delivered and acknowledged.
func (w *world) consumed(n int64) {
	w.Helper()
	redistest.Eventually(w, patience, func(ctx context.Context) error {
		groups, err := w.rdb.XInfoGroups(ctx, "orders").Result()
		if err != nil {
			return err
		}
		if len(groups) != 1 || groups[0].EntriesRead != n || groups[0].Pending != 0 {
			return fmt.Errorf("not consumed: %+v", groups)
		}
		return nil
	})
}

// published returns the messages of a topic.
func (w *world) published(topic string) (all []*message.Message) {
	w.Helper()
	entries, err := w.rdb.XRange(w.Context(), topic, "-", "+").Result()
	if err != nil {
		w.Fatal(err)
	}
	for _, entry := range entries {
		m, err := redisstream.DefaultMarshallerUnmarshaller{}.Unmarshal(entry.Values)
		if err != nil {
			w.Fatal(err)
		}
		all = append(all, m)
	}
	return all
}

// receipt is what the handlers of the tests produce.
func receipt(text string) []*message.Message {
	m := message.NewMessage(watermill.NewUUID(), []byte(text))
	m.Metadata.Set("kind", "receipt")
	return []*message.Message{m}
}
