//go:build long && linux

package zkstore

import (
	"context"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/internal/testkit"
)

// Processes that have ended leave their places in line: these are no nodes of a session. The first of the processes is offered
// the lock, so a process that asks again and again is refused for 3 s.
func TestLocksThatAreKeptForEndedProcessesAreHadByCallersThatAskOnce(t *testing.T) {
	addr := startServer(t)
	testkit.AskAfterEnded(t, func(t *testing.T, line *testkit.Line) core.Store {
		conn, err := Connect([]string{addr}, func(network, addr string, within time.Duration) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(context.Background(), within)
			defer cancel()
			return line.Dial(ctx, network, addr)
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		store, err := New(conn, casstore.Logger(slog.New(slog.NewTextHandler(io.Discard, nil))))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = store.Close() })
		return store
	}, true)
}
