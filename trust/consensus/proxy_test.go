//go:build long && linux

package consensus_test

import (
	"net"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/etcdstore"
)

// proxy starts a grpc-proxy of etcd, and returns its address.
func proxy(t *testing.T, c *cluster) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	client, log := c.client(), zap.NewNop()
	kv, _ := grpcproxy.NewKvProxy(client)
	watch, _ := grpcproxy.NewWatchProxy(client.Ctx(), log, client)
	server := grpc.NewServer()
	etcdserverpb.RegisterKVServer(server, kv)
	etcdserverpb.RegisterWatchServer(server, watch)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return l.Addr().String()
}

// A proxy does not answer to requests for the progress of a watch. Its watches were taken for deaf every 8 s.
func TestAWatchThroughAProxyOfEtcdLasts(t *testing.T) {
	ctx, cancel := timeout(t, limit)
	defer cancel()
	reports := 0
	err := etcdstore.Server(connect(t, proxy(t, newCluster(t)))).Watch(ctx, "k/", func([]casstore.Change) { reports++ })
	if ctx.Err() == nil || reports != 1 {
		t.Errorf("the watch has ended before its context, after %d reports: %v", reports, err)
	}
}
