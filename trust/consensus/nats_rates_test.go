//go:build long && linux

package consensus_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore"
)

// natsCounter counts the requests of clients of NATS: transactions, however many messages each has, and reads.
type natsCounter struct{ writes, reads atomic.Int64 }

// Dial implements [nats.CustomDialer].
func (c *natsCounter) Dial(network, addr string) (net.Conn, error) {
	conn, err := net.DialTimeout(network, addr, limit)
	return &countedNATSConn{conn, c}, err
}

type countedNATSConn struct {
	net.Conn
	counter *natsCounter
}

func (c *countedNATSConn) Write(p []byte) (int, error) {
	count := func(text string) int64 { return int64(bytes.Count(p, []byte(text))) }
	c.counter.writes.Add(count("Nats-Batch-Commit:") + count("HPUB $KV.") - count("Nats-Batch-Id:"))
	c.counter.reads.Add(count("PUB $JS.API.DIRECT.GET."))
	return c.Conn.Write(p)
}

// client makes a connection of which each request is counted, to members that are a way off.
func (c *natsCounter) client(t *testing.T, of *natsCluster) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect("nats://"+strings.Join(allFar(t, of.addrs()), ",nats://"), nats.SetCustomDialer(c), nats.IgnoreDiscoveredServers())
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

// Times are logged, and requests are compared: they do not depend on the machine.
func TestRequestsOfGrantsOnNATSBesideEtcd(t *testing.T) {
	c, counter := newNATS(t, 0), &natsCounter{}
	etcd, members, requests := countedCluster(t)
	for _, m := range c.members {
		members = append(members, m.cmd)
	}
	count := func() (writes, reads int64) {
		ofEtcd, _ := requests()
		return ofEtcd + counter.writes.Load(), counter.reads.Load()
	}
	report := func(name string, callers, keys int, locks [2]pair, most float64) {
		all := beside(t, callers, keys, members, count, locks)
		t.Logf("%s: NATS %v; etcd %v", name, all[0], all[1])
		if ours := all[0].writesOfAPair(); ours > most {
			t.Errorf("%s: %.2f transactions a pair on NATS; want %.1f at most", name, ours, most)
		}
	}
	locker, err := core.New(openNATS(t, counter.client(t, c), casstore.Timeout(limit)), core.Watchdog(time.Minute), core.Unlisted())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Close(context.Background()) })
	one := [2]pair{
		func(ctx context.Context, _ int, key string) error {
			return locker.Do(ctx, key, func(context.Context) error { return nil })
		}, interlockPair(t, etcd()),
	}
	for _, callers := range []int{1, 16, 256} {
		report(fmt.Sprintf("%d callers of %d keys", callers, callers), callers, callers, one, 2.2)
	}
	for _, processes := range []int{4, 24, 48} {
		report(fmt.Sprintf("%d processes that want one key", processes), processes, 1, [2]pair{
			processesPair(t, processes, func() core.Store { return openNATS(t, counter.client(t, c), casstore.Timeout(limit)) }),
			processesPair(t, processes, func() core.Store { return open(t, etcd(), casstore.Timeout(limit)) }),
		}, 6)
	}
}
