package rediswire

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// maxIdle is after which pause the server is asked for an answer before a connection is
	// used again: the server, or a device in between, may have closed it. It is more than a
	// third of the default lease, after which a renewal follows.
	maxIdle = 30 * time.Second
	// maxPinned is after which time the pool of go-redis gets a connection back. Where the
	// client's options have the pool end connections after their lifetime or renew their
	// credentials, that is maxAged.
	maxPinned = time.Minute
	maxAged   = time.Second
)

// link is the connection of a pipeline: a client with a pool of one place. Because the
// link knows its connection, it can break off a call of go-redis there. go-redis itself
// obeys the deadline of a context, and not its end, once a command is sent.
type link struct {
	client    *redis.Client
	keyspace  *keyspace
	idleLimit time.Duration // after this pause the pool gets the connection back
	pinLimit  time.Duration // and after so long anyway

	// The fields below are for the goroutine that has the pipeline.
	pinned *redis.Conn     // the connection, taken out of the pool; nil: it is there
	pipe   redis.Pipeliner // of pinned
	since  time.Time       // when it was taken
	used   time.Time       // when a batch last left

	// shares says that requests of the batch share calls.
	shares atomic.Bool

	mu   sync.Mutex
	conn *conn // the last that was dialed or written to; nil: none yet
	cut  bool  // the batch under way was broken off
	made bool  // a connection was made since dialed last returned

	wrote time.Time // when the connection that was made was last written to

	sever   func()        // breaks it off
	severed chan struct{} // has a token when sever has ended
}

// newLink makes a link to the server of a client. It dials with the first command.
func newLink(of *redis.Client, k *keyspace) *link {
	l := &link{keyspace: k, severed: make(chan struct{}, 2)}
	l.sever = func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.cut = true
		if l.conn != nil {
			l.conn.sever()
		}
		l.severed <- struct{}{}
	}
	o := *of.Options()
	o.PoolSize, o.MaxConcurrentDials, o.PipelinePoolSize = 1, 0, -1
	o.MaxRetries = -1 // go-redis takes the zero that it made of that for its default
	// The scripts' replies are the same in RESP2, and go-redis looks for pushed messages
	// in RESP3.
	o.Protocol = 2
	dial := o.Dialer
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		cn, err := dial(ctx, network, addr)
		if c, ok := cn.(*conn); ok {
			c.link = l
			l.has(c)
			l.mu.Lock()
			l.made = true
			l.mu.Unlock()
		}
		return cn, err
	}
	l.client = redis.NewClient(&o)
	l.idleLimit, l.pinLimit = maxPinned, maxPinned
	if o.ConnMaxIdleTime > 0 {
		l.idleLimit = min(l.idleLimit, o.ConnMaxIdleTime)
	}
	if o.ConnMaxLifetime > 0 || o.StreamingCredentialsProvider != nil {
		l.pinLimit = maxAged
	}
	return l
}

// pin readies the link for a batch. Batches share the connection without the pool of
// go-redis. The pool checks a connection each time that it gives it out, and its code is
// long: after a pause, when the processor's caches are cold, it took a tenth of a
// millisecond.
func (l *link) pin(ctx context.Context) {
	now := time.Now()
	pause := now.Sub(l.used)
	if l.pinned != nil && (!l.open() || now.Sub(l.since) > l.pinLimit || pause >= l.idleLimit) {
		l.unpin() // the pool closes it, if it is to be closed
	}
	l.take(now)
	if pause >= maxIdle && l.open() && !l.answers(ctx) {
		l.unpin()
		l.take(now)
	}
	l.used = now
}

// take takes a connection out of the pool, unless the link has one.
func (l *link) take(now time.Time) {
	if l.pinned == nil {
		l.pinned, l.since = l.client.Conn(), now
		l.pipe = l.pinned.Pipeline()
	}
}

// stand makes the connection of a pipeline to a node of a quorum before the pipeline takes
// requests, if others stand: these take them meanwhile. A connection takes several round
// trips, and a vote that waits for it would come too late.
func (p *pipeline) stand(q *pipelines) {
	others := q.standing.Load()
	if p.works {
		others--
	}
	if q.patience == 0 || p.link.pinned != nil || others == 0 {
		return
	}
	ctx := context.Background() // the client's timeouts bound it
	p.link.pin(ctx)
	if err := p.link.pinned.Ping(ctx).Err(); err != nil && !IsReply(err) {
		p.link.unpin()
	}
}

// open reports whether there is a connection that is not known to be closed. Before the first
// use there is none.
func (l *link) open() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn != nil && !l.conn.severed.Load()
}

// answers asks the server after a long pause: a request that finds the connection closed may
// have been executed, as far as its caller can know. Over a connection that a gateway has
// forgotten no answer comes. So the question may take half of the time that a request may:
// the requests of the batch have the other half, over another connection.
func (l *link) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, l.client.Options().ReadTimeout/2)
	defer cancel()
	err := l.pinned.Ping(ctx).Err()
	return err == nil || IsReply(err)
}

// unpin gives the connection back to the pool, which closes it after a failure.
func (l *link) unpin() {
	_ = l.pinned.Close() // it has nothing to say
	l.pinned, l.pipe = nil, nil
}

// has notes which connection is in use. It is not always the last that was dialed: go-redis
// can dial one for a caller that has left, and keep it.
func (l *link) has(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = c
	if l.made {
		l.wrote = time.Now()
	}
	if l.cut {
		c.sever()
	}
}

// dialed returns when the last batch left, if a connection was made for it, else zero. The
// last write to a connection is the batch: go-redis sets the connection up before.
func (l *link) dialed() (left time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.made {
		l.made, left = false, l.wrote
	}
	return left
}

// refuses returns an error for a batch with shared calls, if its requests must not share
// them ([link.shares]). The batch is made before its connection may have to be dialed, and
// with the connection the store learns where it leads. Of a large batch the first part may
// have been sent before another connection has shown that: its outcome is unknown.
func (l *link) refuses() error {
	if l.keyspace.state.Load() == divided {
		return errDivided
	}
	return nil
}

// cutoff is what may break off the use of a link.
type cutoff struct {
	stop  func() bool // nil: no context does
	timer *time.Timer // nil: no limit does
}

// begin has the connection closed if ctx ends, or the limit passes, before [link.end]. A
// limit of zero is none. Closing works with every connection; a deadline does not, for
// example with one through SSH.
func (l *link) begin(ctx context.Context, limit time.Time) (c cutoff) {
	if ctx.Done() != nil {
		c.stop = context.AfterFunc(ctx, l.sever)
	}
	if !limit.IsZero() {
		c.timer = time.AfterFunc(time.Until(limit), l.sever)
	}
	return c
}

// end ends a use of the link. When it returns, nothing is left that could break off the
// next use.
func (l *link) end(c cutoff) {
	if c.stop != nil && !c.stop() {
		<-l.severed
	}
	if c.timer != nil && !c.timer.Stop() {
		<-l.severed
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = false
}

// conn is a connection that its dialer can close.
type conn struct {
	net.Conn
	dialer  *dialer
	addr    string // that was dialed
	link    *link  // nil: it has none
	served  atomic.Bool
	severed atomic.Bool
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && !c.served.Load() {
		c.served.Store(true)
		c.dialer.serves(c.addr)
	}
	return n, err
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	if c.link != nil {
		c.link.has(c)
		if c.link.shares.Load() {
			if err := c.link.refuses(); err != nil {
				return 0, err
			}
		}
	}
	return c.Conn.Write(b)
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.severed.Store(true)
	c.dialer.mu.Lock()
	delete(c.dialer.open, c)
	c.dialer.mu.Unlock()
	return c.Conn.Close()
}

// sever closes the connection without a word to the server: TLS would say goodbye,
// which can take seconds when nothing gets through.
func (c *conn) sever() {
	c.severed.Store(true)
	if t, ok := c.Conn.(interface{ NetConn() net.Conn }); ok {
		_ = t.NetConn().Close()
		return
	}
	_ = c.Conn.Close()
}

// SyscallConn is what go-redis asks of an idle connection, to see whether it still
// lives. It gets to know that the store has closed the connection, and nothing else. The
// store must not read the socket under the connection of a user's Dialer: the Dialer may
// return a connection that counts or ciphers its data.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	if c.severed.Load() {
		return nil, net.ErrClosed
	}
	return unreadable{}, nil
}

// unreadable is a raw connection without a file descriptor.
type unreadable struct{}

func (unreadable) Control(func(uintptr)) error { return nil }

func (unreadable) Read(func(uintptr) bool) error { return nil }

func (unreadable) Write(func(uintptr) bool) error { return nil }
