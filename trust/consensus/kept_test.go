//go:build long && linux

package consensus_test

import (
	"context"
	"log/slog"
	"net"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/etcdstore"
	"github.com/interlock-go/interlock/internal/testkit"
)

// Processes that have ended leave their places in line. The first of them is offered the lock, so a process that asks again
// and again is refused for 3 s.
func TestOnEtcdLocksThatAreKeptForEndedProcessesAreHadByCallersThatAskOnce(t *testing.T) {
	c := newCluster(t)
	testkit.AskAfterEnded(t, func(t *testing.T, line *testkit.Line) core.Store {
		client, err := etcdstore.Connect(clientv3.Config{
			Endpoints: c.addrs(), Logger: zap.NewNop(),
			DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
				return line.Dial(ctx, "tcp", addr)
			})},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		return open(t, client, casstore.Logger(slog.New(slog.DiscardHandler)))
	}, true)
}
