package watermilllock_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds events that take no time on an idle machine.
const patience = 30 * time.Second

// world is a Pub/Sub, and a store with locks and records.
type world struct {
	*testing.T
	orders *gochannel.GoChannel
	store  *memstore.Store
	locker *core.Locker
	engine *idempotency.Engine

	mu   sync.Mutex
	sent map[string][]*message.Message // messages of the routers, by topic
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, store: memstore.New(), sent: map[string][]*message.Message{}}
	w.orders = gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, nil)
	var err error
	if w.locker, err = core.New(w.store); err != nil {
		t.Fatal(err)
	}
	if w.engine, err = idempotency.New(w.store, idempotency.Global()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := errors.Join(w.orders.Close(), w.engine.Close(ctx), w.locker.Close(ctx)); err != nil {
			t.Errorf("closing: %v", err)
		}
	})
	return w
}

// process runs a router with one handler, charge, from a topic to receipts. Hopeless messages
// go to the topic poison.
func (w *world) process(topic string, wrap message.HandlerMiddleware, handle message.HandlerFunc) {
	w.Helper()
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: patience}, nil)
	if err != nil {
		w.Fatal(err)
	}
	poison, err := middleware.PoisonQueueWithFilter(w, "poison", once.Permanent)
	if err != nil {
		w.Fatal(err)
	}
	router.AddMiddleware(poison, wrap)
	router.AddHandler("charge", topic, shared{w.orders}, "receipts", w, handle)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	<-router.Running()
	w.Cleanup(func() {
		if err := errors.Join(router.Close(), <-ended); err != nil {
			w.Errorf("closing the router: %v", err)
		}
	})
}

// shared is a subscriber of several routers, which outlives each of them.
type shared struct{ message.Subscriber }

func (shared) Close() error { return nil }

// Publish and Close make the world the publisher of the routers.
func (w *world) Publish(topic string, messages ...*message.Message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent[topic] = append(w.sent[topic], messages...)
	return nil
}

func (w *world) Close() error { return nil }

// published returns the messages of the routers.
func (w *world) published(topic string) []*message.Message {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.sent[topic])
}

// publish publishes an order, and waits until all processes have acknowledged it.
func (w *world) publish(uuid, payload string, metadata message.Metadata) {
	w.Helper()
	w.acknowledged(w.deliver("orders", uuid, payload, metadata))
}

// deliver publishes a message, and does not wait.
func (w *world) deliver(topic, uuid, payload string, metadata message.Metadata) (acknowledged <-chan error) {
	m := message.NewMessage(uuid, []byte(payload))
	for key, value := range metadata {
		m.Metadata.Set(key, value)
	}
	done := make(chan error, 1)
	go func() { done <- w.orders.Publish(topic, m) }()
	return done
}

// acknowledged waits for the acknowledgement of a message.
func (w *world) acknowledged(done <-chan error) {
	w.Helper()
	select {
	case err := <-done:
		if err != nil {
			w.Fatal(err)
		}
	case <-time.After(patience):
		w.Fatal("the message was not acknowledged")
	}
}

// receipt is the output of the handlers in tests.
func receipt(text string) []*message.Message {
	m := message.NewMessage(watermill.NewUUID(), []byte(text))
	m.Metadata.Set("kind", "receipt")
	return []*message.Message{m}
}
