package rediswire

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

const (
	// followEvery is how often the sentinels are asked for the master, also while
	// earlier questions have no answer.
	followEvery = time.Second
	// maxAsking bounds the questions without an answer.
	maxAsking = 4
	// askPatience is after how long without an answer a sentinel is left for
	// another.
	askPatience = time.Second
	// leaveEvery bounds how often. To find another, go-redis asks all sentinels, and
	// waits for the sentinel that hangs for as long as its ReadTimeout.
	leaveEvery = 10 * time.Second
)

// A store that uses Sentinel follows a failover by asking. go-redis tells only the
// client that the user has: it closes that client's connections. The store's own would
// stay with the former master for as long as that answers, which it does if it is cut
// off from the sentinels but not from us. Then a part of a store would work there, and
// its new connections on the new master.

// follow is how a dialer finds out which servers are masters.
type follow struct {
	// ask returns their addresses, or fails. It is nil where the address always leads to
	// the server that the user means, or to a server that redirects by itself.
	ask func(context.Context) ([]string, error)
	// leave has the user's client give up the sentinel that it asks.
	leave func()
	// named is whether these are the addresses that are dialed. Otherwise the user's
	// Dialer finds the master at each dial.
	named bool
}

// start begins to follow the masters, and returns when they are known.
func (d *dialer) start() error {
	d.mu.Lock()
	known, following := d.addrs != nil, d.following
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
	return d.ask()
}

// watchMasters asks for the masters until the store is closed.
func (d *dialer) watchMasters() {
	var asking atomic.Int64
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-time.After(followEvery):
		}
		if asking.Load() >= maxAsking {
			continue
		}
		asking.Add(1)
		go func() {
			defer asking.Add(-1)
			hung := time.AfterFunc(askPatience, d.leaveSentinel)
			defer hung.Stop()
			if err := d.ask(); errors.Is(err, redis.ErrClosed) && d.ctx.Err() == nil && !d.warned.Swap(true) {
				d.log.Error("interlock: " + errClientClosed.Error() + "; until then it makes no new connections, follows no failover, " +
					"and loses its leases when they need a new connection to be renewed")
			}
		}()
	}
}

// ask asks for the masters and takes the answer.
func (d *dialer) ask() error {
	d.mu.Lock()
	d.asked++
	question := d.asked
	d.mu.Unlock()
	masters, err := d.follow.ask(d.ctx)
	if err == nil {
		d.learn(question, masters)
	}
	return err
}

// leaveSentinel has the user's client ask another sentinel, since the present one hangs. Before
// the first answer the client has no present sentinel.
func (d *dialer) leaveSentinel() {
	d.mu.Lock()
	due := d.follow.leave != nil && d.addrs != nil && !d.leaving && time.Since(d.left) >= leaveEvery && d.ctx.Err() == nil
	d.leaving = d.leaving || due
	d.mu.Unlock()
	if !due {
		return
	}
	d.follow.leave()
	d.mu.Lock()
	d.leaving, d.left = false, time.Now()
	d.mu.Unlock()
}

// learn takes the answer to a question. If the masters have changed, all connections
// are closed: each may lead to a former one.
func (d *dialer) learn(question int, masters []string) {
	slices.Sort(masters)
	masters = slices.Compact(masters)
	d.mu.Lock()
	before := d.addrs
	if question < d.answered || len(masters) == 0 {
		d.mu.Unlock() // of before the last failover, perhaps
		return
	}
	d.answered = question
	if slices.Equal(before, masters) {
		d.mu.Unlock()
		return
	}
	d.addrs = masters
	if before == nil {
		d.mu.Unlock()
		return
	}
	d.epoch++
	d.former = slices.DeleteFunc(slices.Concat(d.former, before), func(addr string) bool {
		return slices.Contains(masters, addr)
	})
	d.former = slices.Compact(slices.Sorted(slices.Values(d.former)))
	d.mu.Unlock()
	d.log.Warn("interlock: another Redis master: the store's connections are made anew",
		"before", strings.Join(before, " "), "now", strings.Join(masters, " "))
	d.closeAll()
}

// isFormer reports whether a former master has an address.
func (d *dialer) isFormer(addr string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Contains(d.former, addr)
}

// leadsToFormer reports whether a connection leads to a former master, as far as the
// sentinels name addresses and not hosts. Called with d.mu held.
func (d *dialer) leadsToFormer(cn net.Conn) bool {
	if len(d.former) == 0 {
		return false
	}
	addr := cn.RemoteAddr()
	return addr != nil && slices.Contains(d.former, addr.String())
}

// sentinelMaster asks the sentinels of a FailoverClient. Its options, and so their
// addresses, are hidden, but its Dialer asks them at every call and then dials the
// address that they name. A Unix socket of that name does not exist: the error tells
// the name, and nothing was sent to the master. A Dialer of the user's own that knows
// no such sockets makes a connection instead, or is asked for one.
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

// noAnswer is a context that has ended, though with an error that is not a context's.
// Where the context ends, go-redis returns and goes on to ask the sentinel that
// hangs. With this one it takes it that the sentinel failed: it closes its
// connections at once, which ends the questions that wait there, and the next
// question goes to all sentinels.
type noAnswer struct{ context.Context }

var errHangs = errors.New("interlock: the sentinel does not answer")

// Done implements context.Context.
func (noAnswer) Done() <-chan struct{} { return over }

// Err implements context.Context.
func (noAnswer) Err() error { return errHangs }

// over is a channel that is closed.
var over = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// inVain is the context of every call that is to get no answer; it has no values.
var inVain = noAnswer{context.Background()}

// leaveSentinelOf has the sentinels of a FailoverClient asked in vain.
func leaveSentinelOf(dial dialFunc) func() {
	return func() {
		if cn, err := dial(inVain, "unix", ""); err == nil {
			_ = cn.Close()
		}
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
