//go:build long && linux

package consensus_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
	"github.com/interlock-go/interlock/pgxstore"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
	"github.com/interlock-go/interlock/zkstore"
)

// away is how long data take to a server, and as long back, as between a service and its store.
const away = 250 * time.Microsecond

// An exclusive lock without contention takes two requests on each store, and callers of one process
// that share a lock are one hold. Times are logged: they are one table in docs/costs.md.
func TestTheCostOfEachKindOnEachStore(t *testing.T) {
	kinds := []struct {
		name string
		own  bool // each caller has its own key; else one key is for all
		opts []core.Option
	}{{"exclusive", true, nil}, {"shared", false, []core.Option{core.Shared()}}, {"permit", false, []core.Option{core.Permits(64)}}}
	var table strings.Builder
	for _, store := range []struct {
		name string
		open func(t *testing.T) (on core.Store, requests func() int64)
	}{{"Redis", redisFar}, {"PostgreSQL", postgresFar}, {"etcd", etcdFar}, {"ZooKeeper", zookeeperFar}} {
		t.Run(store.name, func(t *testing.T) {
			on, requests := store.open(t)
			locker, err := core.New(on, core.Watchdog(time.Minute), core.Unlisted())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = locker.Close(context.Background()) })
			for _, kind := range kinds {
				fmt.Fprintf(&table, "| %s, %s |", store.name, kind.name)
				for _, callers := range []int{1, 16, 64} {
					keys := 1
					if kind.own {
						keys = callers
					}
					one := func(ctx context.Context, _ int, key string) error {
						return locker.Do(ctx, kind.name+"/"+key, func(context.Context) error { return nil }, kind.opts...)
					}
					once(t, callers, keys, one)
					before, began := requests(), time.Now()
					pairs := keep(t, callers, keys, one)
					each := float64(requests()-before) / float64(pairs)
					fmt.Fprintf(&table, " %.0f | %.2f |", float64(pairs)/time.Since(began).Seconds(), each)
					if kind.own && each > 2.1 {
						t.Errorf("%d callers of exclusive locks without contention: %.2f requests a pair; want 2", callers, each)
					}
					if kind.name == "shared" && callers == 64 && each > 1 {
						t.Errorf("%d callers that share a lock: %.2f requests a pair; want less than one, since they are one hold", callers, each)
					}
				}
				fmt.Fprintln(&table)
			}
		})
	}
	t.Logf("pairs a second and requests a pair at 1, 16 and 64 callers:\n%s", &table)
}

func redisFar(t *testing.T) (core.Store, func() int64) {
	server := redistest.Start(t)
	rdb := redis.NewClient(&redis.Options{Addr: far(t, "tcp", server.Addr())})
	t.Cleanup(func() { _ = rdb.Close() })
	store, err := redisstore.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	return store, func() int64 { return server.Calls(t)["evalsha"] }
}

func postgresFar(t *testing.T) (core.Store, func() int64) {
	var requests atomic.Int64
	config, err := pgxpool.ParseConfig(pgtest.Start(t).DSN())
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 16
	addr := far(t, "unix", fmt.Sprintf("%s/.s.PGSQL.%d", config.ConnConfig.Host, config.ConnConfig.Port))
	config.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}
	config.ConnConfig.Tracer = countedPostgres{&requests}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	store, err := pgxstore.New(pool)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return store, requests.Load
}

// countedPostgres counts the statements of a pool.
type countedPostgres struct{ n *atomic.Int64 }

func (c countedPostgres) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	return ctx
}

func (countedPostgres) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func etcdFar(t *testing.T) (core.Store, func() int64) {
	var requests atomic.Int64
	c, addrs := newCluster(t), []string(nil)
	for _, addr := range c.addrs() {
		addrs = append(addrs, far(t, "tcp", addr))
	}
	return open(t, counted(t, addrs, &requests), casstore.Timeout(limit)), requests.Load
}

func zookeeperFar(t *testing.T) (core.Store, func() int64) {
	var addrs []string
	for _, addr := range newEnsemble(t).addrs() {
		addrs = append(addrs, far(t, "tcp", addr))
	}
	counter := &requestCounter{}
	conn, err := zkstore.Connect(addrs, counter.dial)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return openOn(t, conn, casstore.Timeout(limit)), func() int64 { return counter.writes.Load() + counter.reads.Load() }
}

// far returns an address that leads to a server, a way off.
func far(t *testing.T, network, addr string) string {
	t.Helper()
	return listen(t, func(near net.Conn) {
		server, err := net.Dial(network, addr)
		if err != nil {
			_ = near.Close() // its client sees that
			return
		}
		go carry(server, near)
		carry(near, server)
	})
}

// allFar returns addresses that lead to servers, a way off.
func allFar(t *testing.T, addrs []string) (all []string) {
	t.Helper()
	for _, addr := range addrs {
		all = append(all, far(t, "tcp", addr))
	}
	return all
}

// carry delivers what one side sends to the other, each part after the time of the way.
func carry(from, to net.Conn) {
	type parcel struct {
		data []byte
		due  time.Time
	}
	parcels := make(chan parcel, 1024)
	go func() {
		defer func() { _ = to.Close() }()
		for p := range parcels {
			if left := time.Until(p.due); left > 0 {
				nap := syscall.NsecToTimespec(left.Nanoseconds())
				_ = syscall.Nanosleep(&nap, nil) // a sleep of Go lasts up to a millisecond longer
			}
			if _, err := to.Write(p.data); err != nil {
				_ = from.Close() // ends the reader
			}
		}
	}()
	defer close(parcels)
	for {
		room := make([]byte, 32<<10)
		n, err := from.Read(room)
		if err != nil {
			return
		}
		parcels <- parcel{room[:n], time.Now().Add(away)}
	}
}
