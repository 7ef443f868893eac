package etcdstore

import (
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/observe"
)

// It was said as an answer that does not come, with the advice to wait for longer.
func TestTheErrorSaysThatAConnectionIsRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	client, err := Connect(clientv3.Config{Endpoints: []string{l.Addr().String()}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	store, err := New(client, casstore.Logger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	_, err = store.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "o", TTL: time.Second})
	text := observe.RootCause(err).Error()
	if !strings.Contains(text, l.Addr().String()) || !strings.Contains(text, "connection refused") || strings.Contains(text, "Timeout") {
		t.Errorf("%v; want that it names %s and the refused connection, and no time limit", err, l.Addr())
	}
}
