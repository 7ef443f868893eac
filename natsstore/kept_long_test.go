//go:build long

package natsstore

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/internal/testkit"
)

// dialer dials on a line.
type dialer struct{ *testkit.Line }

func (d dialer) Dial(network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return d.Line.Dial(ctx, network, addr)
}

// Processes that have ended leave their places in line. The first of them is offered the lock, so a process that asks again
// and again is refused for 3 s.
func TestLocksThatAreKeptForEndedProcessesAreHadByCallersThatAskOnce(t *testing.T) {
	s := bucket(t)
	testkit.AskAfterEnded(t, func(t *testing.T, line *testkit.Line) core.Store {
		js := connect(t, s, nats.SetCustomDialer(dialer{line}), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
		return open(t, js, casstore.Logger(slog.New(slog.DiscardHandler)))
	}, true)
}
