package rediswire

import (
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/internal/redistest"
)

// A connection that is known to be closed is not used: the outcome of a request over it
// would be unknown.
func TestAClosedConnectionIsReplacedBeforeItIsUsed(t *testing.T) {
	for name, end := range map[string]func(s *Store, srv *redistest.Server){
		"by the server, some time ago": func(_ *Store, srv *redistest.Server) {
			rdb := srv.Client(t)
			if err := rdb.ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes").Err(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * maxIdle) // a pause is what it is about
		},
		"by the store": func(s *Store, _ *redistest.Server) { s.dialer.closeAll() },
	} {
		t.Run(name, func(t *testing.T) {
			srv := redistest.Start(t)
			s := open(t, srv.Client(t), func(c *Config) { c.Timeout = time.Minute })
			defer func() { _ = s.Close() }()
			take(t, s, "k")
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

// What a caller breaks off is the connection that it has written to, also if go-redis has
// dialed another one since, for a caller that has left.
func TestTheConnectionInUseIsBrokenOff(t *testing.T) {
	srv := redistest.Start(t)
	s := open(t, srv.Client(t), func(*Config) {})
	defer func() { _ = s.Close() }()
	take(t, s, "k")
	rest(t, s)
	l := lastUsed(s)
	dial := func() *conn {
		cn, err := l.client.Options().Dialer(t.Context(), "tcp", srv.Addr())
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
	l.end(guard{})
	if !used.severed.Load() || other.severed.Load() {
		t.Errorf("broken off: the one in use %v, the other one %v", used.severed.Load(), other.severed.Load())
	}
	_, _ = used.Close(), other.Close()
}

// The pool of go-redis ends connections that have lived as long as the user's client wants.
func TestConnectionsInUseEndAfterTheirLifetime(t *testing.T) {
	srv := redistest.Start(t)
	s := open(t, srv.Client(t, func(o *redis.Options) { o.ConnMaxLifetime = time.Second }), func(c *Config) { c.Timeout = time.Minute })
	defer func() { _ = s.Close() }()
	take(t, s, "k")
	q := s.requests.direct
	dialed := func() (all []*conn) {
		q.mu.Lock()
		defer q.mu.Unlock()
		for _, l := range q.links {
			l.mu.Lock()
			all = append(all, l.conn)
			l.mu.Unlock()
		}
		return all
	}
	first := dialed()
	for end := time.Now().Add(time.Minute); slices.Equal(dialed()[:len(first)], first); {
		if time.Now().After(end) {
			t.Fatal("a connection is used for longer than it should live")
		}
		take(t, s, "k")
	}
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
	const pause = 3 * maxIdle
	for name, c := range map[string]struct {
		idle time.Duration // ConnMaxIdleTime
		kept bool
	}{
		"the default":     {0, true},
		"no limit":        {-1, true},
		"a longer pause":  {time.Hour, true},
		"a shorter pause": {pause / 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			srv := redistest.Start(t)
			s := open(t, srv.Client(t, func(o *redis.Options) { o.ConnMaxIdleTime = c.idle }), func(c *Config) { c.Timeout = time.Minute })
			defer func() { _ = s.Close() }()
			take(t, s, "k")
			rest(t, s)
			l := lastUsed(s)
			pinned, conn := l.pinned, l.conn
			time.Sleep(pause) // it is what it is about
			take(t, s, "k")
			rest(t, s)
			if kept := l.pinned == pinned; kept != c.kept {
				t.Errorf("the connection stayed out of the pool: %v", kept)
			}
			if same := l.conn == conn; same != c.kept {
				t.Errorf("the same connection: %v", same)
			}
		})
	}
}

// After a pause a reply takes longer than a caller polls.
func TestACallerDoesNotPollAfterAPause(t *testing.T) {
	srv := redistest.Start(t)
	s := open(t, srv.Client(t), func(c *Config) { c.Timeout = time.Minute })
	defer func() { _ = s.Close() }()
	take(t, s, "k")
	rest(t, s)
	p := &lastUsed(s).poll
	p.init()
	p.never = false
	for i := 0; i < 3 || i < 100 && p.n == 0; i++ { // a busy machine makes pauses of its own
		time.Sleep(2 * pollPause)
		before := p.n
		take(t, s, "k") // the acquire comes after the pause, the release does not
		rest(t, s)
		if n := p.n - before; n > 1 {
			t.Errorf("polling was considered for %d requests, one of which followed another", n)
		}
	}
	if p.n == 0 {
		t.Error("no request that followed another at once was polled for")
	}
}

func TestACallerPollsWhereThatIsFaster(t *testing.T) {
	// play carries out a term of requests that take so long, and returns how many of them
	// after the trial were polled for. It sees to it that the caller's core gets free from
	// time to time.
	stretch := time.Duration(0)
	play := func(p *polling, with, sans time.Duration) (polled, requests int) {
		for i := 0; i == 0 || p.n > 0; i++ {
			requests++
			p.begin()
			took := sans
			if p.on {
				took = with
			}
			if p.on && i >= pollTrial {
				polled++
			}
			if stretch += min(took, pollLimit); !p.on {
				stretch = 0
			}
			if stretch >= max(pollStretch+min(with, pollLimit), pollRun*pollLimit+1) {
				t.Fatalf("it polls for %v without a pause", stretch)
			}
			p.over(took)
			if p.on {
				t.Fatal("it goes on polling after the request")
			}
		}
		return polled, requests
	}
	const us = time.Microsecond
	p := new(polling)
	p.init()
	p.never = false
	for _, c := range []struct {
		with, sans time.Duration
		polls      bool
		term       int
	}{
		{30 * us, 60 * us, true, pollTerm},
		{30 * us, 25 * us, false, 2 * pollTerm}, // busy cores
		{30 * us, 25 * us, false, 4 * pollTerm},
		{66 * us, 80 * us, true, pollTerm},
		{75 * us, 80 * us, false, 2 * pollTerm}, // too little, and perhaps by chance
		{30 * us, 60 * us, true, pollTerm},
		{300 * us, 305 * us, false, 2 * pollTerm}, // a server that is far
		{300 * us, 400 * us, false, 4 * pollTerm}, // and by chance was slower without
		{66 * us, 80 * us, true, pollTerm},
		{300 * us, 305 * us, false, 2 * pollTerm},
		{0, 0, false, 4 * pollTerm}, // one that fails
		{0, 0, false, 8 * pollTerm},
		{0, 0, false, maxPollTerm},
		{0, 0, false, maxPollTerm},
	} {
		polled, requests := play(p, c.with, c.sans)
		rest := pollStretch / max(c.with, us) // so many are polled for, then one is not
		if most := (requests - pollTrial) * int(rest) / int(rest+1); c.polls && polled < most-1 || !c.polls && polled != 0 || requests != c.term {
			t.Errorf("%v with polling, %v without: %d of %d requests were polled for, want a term of %d",
				c.with, c.sans, polled, requests, c.term)
		}
	}
	// A few slow requests decide nothing, nor do those that follow requests of the other kind.
	p = new(polling)
	p.init()
	p.never = false
	row := 0 // of requests of one kind
	for i, was := 0, false; i < pollTrial; i++ {
		if p.begin(); p.on != was {
			row, was = 0, p.on
		}
		row++
		switch {
		case p.on && (i < 2*pollRun || row <= pollSettle):
			p.over(time.Second)
		case p.on:
			p.over(30 * us)
		case row <= pollSettle:
			p.over(us)
		default:
			p.over(60 * us)
		}
	}
	if !p.best {
		t.Error("it does not poll because of a few slow requests")
	}
	p = &polling{never: true}
	if n, _ := play(p, 30*us, 60*us); n != 0 || p.n != 0 {
		t.Errorf("%d requests were polled for on one processor", n)
	}
}

func TestAServerIsNearByItsShortestTrips(t *testing.T) {
	var d distance
	trips := func(took time.Duration, requests int) {
		for range tripsEach {
			d.trip(0, 1) // failed
			d.trip(took, requests)
		}
	}
	for _, c := range []struct {
		took     time.Duration
		requests int
		near     bool
	}{
		{60 * time.Microsecond, 1, true},
		{500 * time.Microsecond, 1, false},
		{500 * time.Microsecond, 60, true}, // it works as long as that
		{5 * time.Millisecond, 60, false},
	} {
		if trips(c.took, c.requests); d.near != c.near {
			t.Errorf("%v for %d requests: near is %v", c.took, c.requests, d.near)
		}
	}
}
