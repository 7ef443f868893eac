package natsstore

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/driver"
)

// The client has no last error while it connects again. The text had a mark of the formatter in its place.
func TestALostConnectionIsNamed(t *testing.T) {
	s := bucket(t)
	lost := make(chan struct{}, 1)
	js := connect(t, s, nats.MaxReconnects(-1), nats.DisconnectErrHandler(func(*nats.Conn, error) { lost <- struct{}{} }))
	server := Server(js, "locks")
	s.Shutdown()
	select {
	case <-lost:
	case <-time.After(limit):
		t.Fatal("the client does not lose its connection to a server that has ended")
	}
	_, err := server.Commit(t.Context(), casstore.Txn{Then: []casstore.Op{put("a", "")}})
	if !errors.Is(err, driver.ErrNotReady) || !strings.Contains(err.Error(), "no connection to NATS (RECONNECTING)") || strings.Contains(err.Error(), "%!") {
		t.Errorf("%v; want ErrNotReady, and that there is no connection", err)
	}
}
