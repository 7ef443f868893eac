package redisstore

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// followEvery is how often the sentinels are asked for the master.
const followEvery = time.Second

// A store behind Sentinel follows a failover by asking. go-redis tells only the
// client that the user has: it closes that client's connections. The store's own
// would stay with the former master for as long as that answers, which it does if
// it is cut off from the sentinels but not from us. Half of a store would then work
// there and half, what is dialed anew, on the new one.

// follow is how a dialer finds out which servers are masters.
type follow struct {
	// ask returns their addresses, or fails. It is nil where the server at an
	// address is what the user says it is, or says by itself where to go instead.
	ask func(context.Context) ([]string, error)
	// named is whether these are the addresses that are dialed. Otherwise the user's
	// Dialer finds the master at each dial.
	named bool
}

// start begins to follow the masters, and returns when they are known.
func (d *dialer) start() error {
	d.mu.Lock()
	known, following := d.masters != nil, d.following
	d.following = true
	d.mu.Unlock()
	if !following {
		go d.watchMasters()
	}
	if known {
		return nil
	}
	// A connection that is made before the first answer could lead to a master that
	// is the former one by then.
	masters, err := d.follow.ask(d.ctx)
	if err == nil {
		d.learn(masters)
	}
	return err
}

// watchMasters asks for the masters until the store is closed.
func (d *dialer) watchMasters() {
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-time.After(followEvery):
		}
		switch masters, err := d.follow.ask(d.ctx); {
		case err == nil:
			d.learn(masters)
		case errors.Is(err, redis.ErrClosed) && d.ctx.Err() == nil && !d.warned:
			d.warned = true
			d.log.Error("interlock: " + errClientClosed.Error() + "; until then it makes no new connections, follows no failover, " +
				"and loses its leases when they need a new connection to be renewed")
		}
	}
}

// learn takes an answer. If the masters have changed, all connections are closed:
// each may lead to a former one.
func (d *dialer) learn(masters []string) {
	slices.Sort(masters)
	masters = slices.Compact(masters)
	d.mu.Lock()
	before := d.masters
	if len(masters) == 0 || slices.Equal(before, masters) {
		d.mu.Unlock()
		return
	}
	d.masters = masters
	if before == nil {
		d.mu.Unlock()
		return
	}
	d.epoch++
	if d.follow.named {
		d.former = slices.DeleteFunc(slices.Concat(d.former, before), func(addr string) bool {
			return slices.Contains(masters, addr)
		})
		d.former = slices.Compact(slices.Sorted(slices.Values(d.former)))
	}
	d.mu.Unlock()
	d.log.Warn("interlock: another Redis master: the store's connections are made anew",
		"before", strings.Join(before, " "), "now", strings.Join(masters, " "))
	d.closeAll()
}

// isFormer reports whether an address is that of a former master.
func (d *dialer) isFormer(addr string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Contains(d.former, addr)
}

// behindSentinel reports whether options are those of a FailoverClient.
func behindSentinel(o *redis.Options) bool { return o.Addr == "FailoverClient" }

// sentinelMaster asks the sentinels of a FailoverClient. Its options, and so their
// addresses, are hidden, but its Dialer asks them at every call and then dials what
// they name. A Unix socket of that name does not exist: the error tells the name,
// and nothing was sent to the master. A Dialer of the user's own that knows no such
// sockets makes a connection instead, or is asked for one.
func sentinelMaster(dial dialFunc) func(context.Context) ([]string, error) {
	var told atomic.Bool // by the error, at least once
	return func(ctx context.Context) ([]string, error) {
		cn, err := dial(ctx, "unix", "")
		var op *net.OpError
		if errors.As(err, &op) && op.Op == "dial" && op.Net == "unix" && op.Addr != nil {
			told.Store(true)
			return []string{op.Addr.String()}, nil
		}
		if err != nil && !told.Load() && ctx.Err() == nil && !errors.Is(err, redis.ErrClosed) {
			cn, err = dial(ctx, "tcp", "")
		}
		if err != nil {
			return nil, err
		}
		defer cn.Close() //nolint:errcheck // it was never used
		return []string{cn.RemoteAddr().String()}, nil
	}
}

// mastersOf has clients for a Cluster ask for its topology, and returns the
// addresses of the masters.
func mastersOf(clients ...*redis.ClusterClient) func(context.Context) ([]string, error) {
	return func(ctx context.Context) ([]string, error) {
		var mu sync.Mutex
		var addrs []string
		for _, c := range clients {
			err := c.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
				mu.Lock()
				defer mu.Unlock()
				addrs = append(addrs, node.Options().Addr)
				return nil
			})
			if err != nil {
				return nil, err
			}
		}
		return addrs, nil
	}
}
