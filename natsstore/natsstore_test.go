package natsstore

import (
	"sync/atomic"
	"testing"
	"time"

	natsd "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/casstore/castest"
)

// start starts a NATS server in this process.
func start(t *testing.T, set func(*natsd.Options)) *natsd.Server {
	t.Helper()
	opts := &natsd.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true}
	if set != nil {
		set(opts)
	}
	s, err := natsd.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("NATS does not start")
	}
	return s
}

// connect makes a connection that ends with the test.
func connect(t *testing.T, s *natsd.Server, opts ...nats.Option) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(s.ClientURL(), append([]nats.Option{nats.PingInterval(2 * time.Second)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// bucket starts a NATS server with a bucket.
func bucket(t *testing.T) *natsd.Server {
	t.Helper()
	s := start(t, nil)
	if err := Create(t.Context(), connect(t, s), "locks", 1); err != nil {
		t.Fatal(err)
	}
	return s
}

// contract tests connections to members in turn.
func contract(t *testing.T, members ...*natsd.Server) {
	var opened atomic.Int64
	castest.Run(t, func(t *testing.T) casstore.Server {
		return Server(connect(t, members[int(opened.Add(1))%len(members)]), "locks")
	})
}

func TestAServerKeepsTheContract(t *testing.T) { contract(t, bucket(t)) }

// limit is for transactions where no fault is expected: a stall of the machine breaks none.
const limit = 30 * time.Second

// open makes a store that is closed at the end of the test.
func open(t *testing.T, js jetstream.JetStream, opts ...casstore.Option) *Store {
	t.Helper()
	store, err := New(js, "locks", opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return store
}
