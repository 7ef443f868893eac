package rediswire

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// link is the connection of a pipeline: a client whose pool has one place. Because the
// link knows which connection that is, it can break off what go-redis does there. go-redis
// itself obeys the deadline of a context, and not its end, once a command is sent.
type link struct {
	client *redis.Client

	mu   sync.Mutex
	conn *conn // the last that was dialed; nil: none yet
	cut  bool  // what is under way was broken off

	sever   func()        // breaks it off
	severed chan struct{} // has a token when sever is over
}

// newLink makes a link to the server of a client. It dials with the first command.
func newLink(of *redis.Client) *link {
	l := &link{severed: make(chan struct{}, 2)}
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

// has takes a new connection.
func (l *link) has(c *conn) {
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
