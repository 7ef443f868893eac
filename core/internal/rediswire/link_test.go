//go:build integration

package rediswire

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/internal/redistest"
)

// A connection that is known to be closed is not used: the outcome of a request over it
// would be unknown.
func TestAClosedConnectionIsReplacedBeforeItIsUsed(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(s *Store, srv *redistest.Server){
		"by the server, some time ago": func(s *Store, srv *redistest.Server) {
			rdb := srv.Client(t)
			if err := rdb.ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes").Err(); err != nil {
				t.Fatal(err)
			}
			l := lastUsed(s)
			l.used = l.used.Add(-maxIdle)
		},
		"by the store": func(s *Store, _ *redistest.Server) { s.dialer.closeAll() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := redistest.Start(t)
			s := newStore(t, srv.Client(t))
			take(t, s, "k")
			rest(t, s)
			end(s, srv)
			rep, err := s.Acquire(t.Context(), driver.AcquireRequest{
				Key: "k", Owner: "o", TTL: time.Minute, Deadline: time.Now().Add(time.Minute),
			})
			if err != nil || !rep.Granted || rep.Ambiguous {
				t.Errorf("%+v, %v; want a grant whose outcome was never in doubt", rep, err)
			}
		})
	}
}

// A caller breaks off the connection that it has written to, also if go-redis has dialed
// another one since, for a caller that has left.
func TestTheConnectionInUseIsBrokenOff(t *testing.T) {
	t.Parallel()
	s := common(t)
	take(t, s, "k")
	rest(t, s)
	l := lastUsed(s)
	dial := func() *conn {
		cn, err := l.client.Options().Dialer(t.Context(), "tcp", l.client.Options().Addr)
		if err != nil {
			t.Fatal(err)
		}
		return cn.(*conn)
	}
	used, other := dial(), dial()
	if _, err := used.Write([]byte("PING\r\n")); err != nil {
		t.Fatal(err)
	}
	l.sever()
	l.end(cutoff{})
	if !used.severed.Load() || other.severed.Load() {
		t.Errorf("broken off: the one in use %v, the other one %v", used.severed.Load(), other.severed.Load())
	}
	_, _ = used.Close(), other.Close()
}

// The pool of go-redis ends connections that have lived as long as the user's client wants,
// and gets them back often for that.
func TestConnectionsInUseEndAfterTheirLifetime(t *testing.T) {
	t.Parallel()
	s := common(t, func(o *redis.Options) { o.ConnMaxLifetime = time.Millisecond })
	take(t, s, "k")
	rest(t, s)
	l := lastUsed(s)
	first := l.conn
	redistest.Eventually(t, time.Minute, func(context.Context) error { // go-redis's clock is coarse
		l.since = l.since.Add(-2 * maxAged) // as if so much time had gone by
		take(t, s, "k")
		rest(t, s)
		if l.conn == first {
			return errors.New("a connection is used for longer than it should live")
		}
		return nil
	})
}

// lastUsed is the link that a caller gets next, of a store that is at rest.
func lastUsed(s *Store) *link {
	q := s.requests.direct
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.free[len(q.free)-1].link
}

// A connection is used again after a pause without the pool, unless the options of the
// client say that it must not be idle for so long.
func TestAConnectionIsKeptOverAPauseThatTheClientAllows(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		idle time.Duration // ConnMaxIdleTime
		kept bool
	}{
		"the default":     {0, true},
		"no limit":        {-1, true},
		"a longer pause":  {time.Hour, true},
		"a shorter pause": {time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := redistest.Start(t)
			s := newStore(t, srv.Client(t, func(o *redis.Options) { o.ConnMaxIdleTime = c.idle }))
			take(t, s, "k")
			rest(t, s)
			l := lastUsed(s)
			pinned, conn := l.pinned, l.conn
			l.used = l.used.Add(-maxIdle) // as if so much time had gone by
			srv.ResetStats(t)
			take(t, s, "k")
			rest(t, s)
			if kept := l.pinned == pinned; kept != c.kept {
				t.Errorf("the connection stayed out of the pool: %v", kept)
			}
			if c.kept && (l.conn != conn || srv.Calls(t)["ping"] != 1) {
				t.Errorf("the same connection: %v, and the server was asked %d times whether it stands", l.conn == conn, srv.Calls(t)["ping"])
			}
		})
	}
}

// own is a connection of a user's Dialer. It embeds the connection that it uses. Methods of
// that connection bypass the Read of this type.
type own struct {
	*net.TCPConn
	read, past *atomic.Int64
}

func (c *own) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	c.read.Add(int64(n))
	return n, err
}

func (c *own) SyscallConn() (syscall.RawConn, error) {
	c.past.Add(1)
	return c.TCPConn.SyscallConn()
}

// A Dialer may return connections that count, cipher or compress the data. The raw bytes
// of the socket are then not the answer of the server.
func TestNothingIsReadPastTheConnectionOfTheUsersDialer(t *testing.T) {
	t.Parallel()
	var read, past atomic.Int64
	s := common(t, func(o *redis.Options) {
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			cn, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &own{cn.(*net.TCPConn), &read, &past}, nil
		}
	})
	hold(t, s, "held") // with a renewal and a subscription
	for range 2 {
		take(t, s, "k")
		rest(t, s)
		l := lastUsed(s)
		l.used = l.used.Add(-maxIdle)                      // as if so much time had gone by
		if err := s.Delete(t.Context(), "k"); err != nil { // by the pool of go-redis
			t.Fatal(err)
		}
	}
	if past.Load() != 0 || read.Load() == 0 {
		t.Errorf("%d bytes were read from the Dialer's connections, which were passed by %d times", read.Load(), past.Load())
	}
}
