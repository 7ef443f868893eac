package rediswire

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// maxIdle is after which pause the pool of go-redis gets a connection back before it
	// is used again, to look whether the server has closed it.
	maxIdle = 100 * time.Millisecond
	// maxPinned is after which time the pool gets it back anyway: it also ends connections
	// after their lifetime (ConnMaxLifetime) and renews their credentials.
	maxPinned = time.Second
)

// link is the connection of a pipeline: a client whose pool has one place. Because the
// link knows which connection that is, it can break off what go-redis does there. go-redis
// itself obeys the deadline of a context, and not its end, once a command is sent.
type link struct {
	client *redis.Client

	// What follows is for the goroutine that has the pipeline.
	pinned *redis.Conn     // the connection, taken out of the pool; nil: it is there
	pipe   redis.Pipeliner // of pinned
	since  time.Time       // when it was taken
	used   time.Time       // when a batch last left
	poll   polling

	mu   sync.Mutex
	conn *conn // the last that was dialed; nil: none yet
	cut  bool  // what is under way was broken off

	sever   func()        // breaks it off
	severed chan struct{} // has a token when sever is over
}

// newLink makes a link to the server of a client. It dials with the first command.
func newLink(of *redis.Client) *link {
	l := &link{severed: make(chan struct{}, 2)}
	l.poll.init()
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
			l.has(c)
		}
		return cn, err
	}
	l.client = redis.NewClient(&o)
	return l
}

// pin readies the link for a batch. Batches that follow one another share the connection
// without the pool of go-redis, which looks at a connection each time that it gives it out:
// a system call and two allocations.
func (l *link) pin() {
	now := time.Now()
	if l.pinned != nil && (now.Sub(l.used) > maxIdle || now.Sub(l.since) > maxPinned || l.isSevered()) {
		l.unpin()
	}
	if l.pinned == nil {
		l.pinned, l.since = l.client.Conn(), now
		l.pipe = l.pinned.Pipeline()
	}
	l.used = now
}

// unpin gives the connection back to the pool, which closes it after a failure.
func (l *link) unpin() {
	_ = l.pinned.Close() // it has nothing to say
	l.pinned, l.pipe = nil, nil
}

// isSevered reports whether the store has closed the connection.
func (l *link) isSevered() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn != nil && l.conn.severed.Load()
}

// has takes a new connection.
func (l *link) has(c *conn) {
	c.poll = &l.poll
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = c
	if l.cut {
		c.sever()
	}
}

// guard is what may break off the use of a link.
type guard struct {
	stop  func() bool // nil: no context does
	timer *time.Timer // nil: no limit does
}

// guard has the connection closed if ctx ends, or the limit is over, before [link.end]. A
// limit of zero is none. Closing works with every connection; a deadline does not, for
// example with one through SSH.
func (l *link) guard(ctx context.Context, limit time.Time) (g guard) {
	if ctx.Done() != nil {
		g.stop = context.AfterFunc(ctx, l.sever)
	}
	if !limit.IsZero() {
		g.timer = time.AfterFunc(time.Until(limit), l.sever)
	}
	return g
}

// end ends a use of the link. When it returns, nothing is left that could break off the
// next use.
func (l *link) end(g guard) {
	if g.stop != nil && !g.stop() {
		<-l.severed
	}
	if g.timer != nil && !g.timer.Stop() {
		<-l.severed
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = false
}
