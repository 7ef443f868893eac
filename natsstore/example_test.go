package natsstore_test

import (
	"context"
	"log"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/natsstore"
)

// A locker on a bucket of three members, and the unsafe settings of this bucket.
func Example() {
	nc, err := nats.Connect("nats://nats-1,nats://nats-2,nats://nats-3",
		nats.MaxReconnects(-1), nats.PingInterval(2*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		log.Fatal(err)
	}
	if err := natsstore.Create(context.Background(), js, "locks", 3); err != nil {
		log.Fatal(err)
	}
	store, err := natsstore.New(js, "locks")
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	locker, err := core.New(store)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(context.Background())

	unsafe, err := store.Check(context.Background())
	if err != nil {
		log.Print(err)
	}
	for _, sentence := range unsafe {
		log.Print(sentence)
	}
}

// The administrator makes the bucket, once.
func ExampleCreate() {
	ctx := context.Background()
	nc, err := nats.Connect("nats://nats-1,nats://nats-2,nats://nats-3")
	if err != nil {
		log.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		log.Fatal(err)
	}
	err = natsstore.Create(ctx, js, "locks", 3) // once
	log.Print(err)
}
