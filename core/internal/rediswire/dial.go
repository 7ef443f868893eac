package rediswire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/internal/logs"
)

const (
	// maxDialing bounds, for each address, the calls of the user's Dialer that have
	// not returned. The store may have stopped waiting for them.
	maxDialing = 256
	// severEvery bounds how often an answer of a server has all connections closed.
	severEvery = time.Second
)

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// masters are the answers of sentinels. The mutex of the dialer guards them.
type masters struct {
	addrs     []string // of the last answer, sorted; nil before the first
	former    []string // addresses that are dialed no more
	epoch     int      // how many times the masters changed, or may have
	dials     int      // that have begun
	following bool     // whether masters are being asked for
	asked     int      // questions for the masters
	answered  int      // the latest of them that has an answer
}

// dialer makes the connections of a store with the Dialer of the user's client, and
// does what neither that nor go-redis does:
//
//   - A dial ends with its context, and after the store's timeout. A TLS handshake
//     of go-redis obeys no context and the timeout of the user, and a Dialer of the
//     user may obey none at all.
//   - A dial that fails is not seen by go-redis's connection pool. After as many
//     failures as it has places the pool tries once a second only, and a pool for
//     renewals is small.
//   - Dials to a server that is away are spaced: see pace.
//   - Connections to a server that is no longer the master are closed, also those for
//     subscriptions.
type dialer struct {
	log     *logs.Log
	timeout time.Duration
	follow  follow // zero unless the user's client asks for the master

	ctx    context.Context // ends when the store is closed
	cancel context.CancelFunc

	mu      sync.Mutex
	open    map[*conn]struct{}
	dialing map[string]int // calls of the user's Dialer, by address
	paces   map[string]*pace
	severed time.Time // when an answer of a server last had all connections closed
	masters
	left    time.Time // when a sentinel that hung was last left
	leaving bool      // it is being left

	warned atomic.Bool
}

// newDialer makes a dialer for connections with the given DialTimeout.
func newDialer(log *logs.Log, dialTimeout, timeout time.Duration) *dialer {
	if dialTimeout > 0 {
		timeout = min(timeout, dialTimeout)
	}
	d := &dialer{log: log, timeout: timeout, open: map[*conn]struct{}{}, dialing: map[string]int{}, paces: map[string]*pace{}}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d
}

// through returns the Dialer for the store's clients. It returns no error: what a
// failed dial is, go-redis learns from the connection's first write.
func (d *dialer) through(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		cn, err := d.connect(ctx, dial, network, addr)
		if err != nil {
			return newFailedConn(network, addr, err), nil
		}
		return cn, nil
	}
}

// connect dials, and waits for the connection no longer than the context and the
// timeout allow. A connection that comes later is closed.
func (d *dialer) connect(ctx context.Context, dial dialFunc, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	if err := d.await(ctx, addr); err != nil {
		return nil, err
	}
	epoch, err := d.begin(addr)
	if err != nil {
		return nil, err
	}
	type result struct {
		cn  net.Conn
		err error
	}
	got := make(chan result)
	go func() {
		cn, err := d.dial(ctx, dial, network, addr)
		select {
		case got <- result{cn, err}:
		case <-ctx.Done():
			if err == nil {
				_ = cn.Close()
			}
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.dialing[addr]--; d.dialing[addr] == 0 {
			delete(d.dialing, addr)
		}
	}()
	select {
	case r := <-got:
		if r.err != nil {
			return nil, d.explain(r.err)
		}
		return d.track(r.cn, addr, epoch)
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-d.ctx.Done():
		return nil, errShut
	}
}

// begin counts a dial.
func (d *dialer) begin(addr string) (epoch int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dialing[addr] >= maxDialing {
		return 0, fmt.Errorf("%d earlier calls of the client's Dialer have not returned", maxDialing)
	}
	d.dialing[addr]++
	d.dials++
	return d.epoch, nil
}

// dial calls the user's Dialer. The Dialer of a FailoverClient asks the sentinels
// first, and leaves a sentinel that hangs only if the context does not end meanwhile.
func (d *dialer) dial(ctx context.Context, dial dialFunc, network, addr string) (net.Conn, error) {
	if d.follow.ask == nil {
		return dial(ctx, network, addr)
	}
	if err := d.start(); err != nil {
		return nil, err
	}
	if d.isFormer(addr) {
		return nil, errors.New("it is no longer the master")
	}
	if d.follow.named {
		return dial(ctx, network, addr)
	}
	return dial(d.ctx, network, addr)
}

// track begins to look after a connection.
func (d *dialer) track(cn net.Conn, addr string, epoch int) (net.Conn, error) {
	c := &conn{Conn: cn, dialer: d, addr: addr}
	d.mu.Lock()
	err := d.refuses(cn, epoch)
	if err == nil {
		d.open[c] = struct{}{}
	}
	d.mu.Unlock()
	if err != nil {
		c.sever()
		return nil, err // the pool dials again
	}
	return c, nil
}

// refuses says why a new connection is not used. Called with d.mu held.
func (d *dialer) refuses(cn net.Conn, epoch int) error {
	switch {
	case d.ctx.Err() != nil:
		return errShut
	case epoch != d.epoch: // it was dialed before, and may lead to the former master
		return errors.New("the master changed meanwhile")
	case d.leadsToFormer(cn):
		// The user's Dialer asked a sentinel that was not told about the failover yet.
		return errors.New("it leads to a server that is no longer the master")
	}
	return nil
}

// explain names the cause of an error that would be a riddle to its reader.
func (d *dialer) explain(err error) error {
	if d.follow.ask != nil && errors.Is(err, redis.ErrClosed) {
		return fmt.Errorf("%w: %w", errClientClosed, err)
	}
	return err
}

var errClientClosed = errors.New("the Sentinel client that was given to redisstore.New is closed: " +
	"the store reaches the sentinels only through it; close the store first")

// dialed returns how many dials have begun.
func (d *dialer) dialed() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dials
}

// sever closes all connections, unless it did so a moment ago; the pools dial new
// ones.
func (d *dialer) sever() {
	now := time.Now()
	d.mu.Lock()
	due := now.Sub(d.severed) >= severEvery
	if due {
		// A dial that is under way has perhaps found its address before that led elsewhere.
		// Its connection is not among the open ones yet, and would stay: a connection of
		// subscriptions gets no answer that has it closed later.
		d.severed = now
		d.epoch++
	}
	d.mu.Unlock()
	if due {
		d.closeAll()
	}
}

// closeAll closes all connections. A read that waits on one ends.
func (d *dialer) closeAll() {
	d.mu.Lock()
	open := d.open
	d.open = map[*conn]struct{}{}
	d.mu.Unlock()
	for c := range open {
		c.sever()
	}
}

// close ends dials under way. The connections are closed by their pools.
func (d *dialer) close() { d.cancel() }

// failedConn is in place of a connection that could not be made. Nothing was ever
// sent over it, which its error says by its form, a failed dial's.
type failedConn struct {
	net.Conn // a closed one, for its addresses
	err      error
}

func newFailedConn(network, addr string, err error) net.Conn {
	closed, _ := net.Pipe()
	_ = closed.Close()
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "dial" {
		err = &net.OpError{Op: "dial", Net: network, Addr: nodeAddr{network, addr}, Err: err}
	}
	// go-redis takes one wrapping off.
	return &failedConn{closed, fmt.Errorf("connecting: %w", err)}
}

func (c *failedConn) Read([]byte) (int, error)  { return 0, c.err }
func (c *failedConn) Write([]byte) (int, error) { return 0, c.err }

// SetDeadline and the next two succeed, so that Write has the error.
func (c *failedConn) SetDeadline(time.Time) error      { return nil }
func (c *failedConn) SetReadDeadline(time.Time) error  { return nil }
func (c *failedConn) SetWriteDeadline(time.Time) error { return nil }

// nodeAddr is the address of a server as it is configured.
type nodeAddr struct{ network, addr string }

func (a nodeAddr) Network() string { return a.network }
func (a nodeAddr) String() string  { return a.addr }
