//go:build integration

package rediswire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/internal/redistest"
)

// More pipelines than few are worth their work only where the way is longer than the work on
// all requests, including the waiting ones.
func TestPipelinesAreOpenedWhereTheWayIsLongerThanTheWork(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		trip   time.Duration
		others int // requests that are under way, or wait
		fails  bool
		want   int // pipelines
	}{
		"a lone caller on the same machine":      {60 * time.Microsecond, 0, false, 4},
		"16 callers on the same machine":         {200 * time.Microsecond, 15, false, 4},
		"256 callers on the same machine":        {1300 * time.Microsecond, 255, false, 4},
		"16 callers in the same zone":            {800 * time.Microsecond, 15, false, 4},
		"16 callers in another zone":             {1300 * time.Microsecond, 15, false, 6},
		"64 callers in another zone":             {1600 * time.Microsecond, 63, false, 6},
		"256 callers in another zone":            {1900 * time.Microsecond, 255, false, 4},
		"256 callers on another continent":       {100 * time.Millisecond, 255, false, 8},
		"a long way after a failure":             {100 * time.Millisecond, 0, true, 4},
		"a connection that was made, no measure": {0, 0, false, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := &pipelines{most: maxPipelines, sent: c.others + 1}
			q.look(&pipeline{batch: make([]*Request, 1), works: !c.fails, trip: c.trip})
			got := 0
			for ; !q.full(); q.busy++ {
				got++
			}
			if got != c.want || q.sent != c.others {
				t.Errorf("%d pipelines, and %d requests are under way; want %d and %d", got, q.sent, c.want, c.others)
			}
		})
	}
}

// distant is a Dialer. Its connections bring each reply late.
func distant(ctx context.Context, network, addr string) (net.Conn, error) {
	cn, err := new(net.Dialer).DialContext(ctx, network, addr)
	return distantConn{cn}, err
}

type distantConn struct{ net.Conn }

func (c distantConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	<-time.After(20 * time.Millisecond)
	return n, err
}

// hangingFar returns a store that has found its server to be far. The server hangs.
func hangingFar(t *testing.T, change func(*Config)) (*Store, *redistest.Server) {
	t.Helper()
	srv := redistest.Start(t)
	s := open(t, srv.Client(t, func(o *redis.Options) { o.Dialer = distant }), change)
	t.Cleanup(func() { _ = s.Close() })
	for range 2 { // the first makes the connection, and is no measure
		take(t, s, "warm")
	}
	underWay(t, s, 0)
	srv.Pause(t)
	return s, srv
}

// ask starts n callers, each for a key that no other owner has.
func ask(t *testing.T, s *Store, srv *redistest.Server, n int) *sync.WaitGroup {
	t.Helper()
	var all sync.WaitGroup
	t.Cleanup(func() {
		srv.Resume(t) // after a failure too nothing waits for a server that hangs
		all.Wait()
	})
	for i := range n {
		all.Go(func() {
			ask := driver.AcquireRequest{Key: fmt.Sprint("ask", i), Owner: "o", TTL: time.Minute}
			if rep, err := s.Acquire(context.Background(), ask); err != nil || !rep.Granted {
				t.Errorf("caller %d got %+v, %v; want a grant", i, rep, err)
			}
		})
	}
	return &all
}

// With four pipelines the fifth of some callers waited for the reply of another, which over a
// network takes longer than all the work.
func TestNoRequestWaitsForTheReplyOfAnotherBehindALongWay(t *testing.T) {
	t.Parallel()
	s, srv := hangingFar(t, func(*Config) {})
	for i := range maxPipelines {
		ask(t, s, srv, 1)
		underWay(t, s, i+1)
	}
	more := ask(t, s, srv, 2)
	queued(t, s, 2) // there is a bound
	srv.Resume(t)
	more.Wait()
}

// A caller that leaves breaks off its own connection. The requests of the others, which are
// under way at the same time, are carried out once.
func TestACallerThatLeavesBreaksOffNoConnectionOfOthers(t *testing.T) {
	t.Parallel()
	s, srv := hangingFar(t, func(*Config) {})
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	late, left := make(chan driver.Reply, 1), make(chan error, 1)
	go func() {
		_, err := s.Acquire(ctx, driver.AcquireRequest{
			Key: "left", Owner: "o", TTL: time.Minute, Late: func(rep driver.Reply, _ error) { late <- rep },
		})
		left <- err
	}()
	underWay(t, s, 1)
	var others []*sync.WaitGroup
	for i := range maxPipelines - 1 {
		others = append(others, ask(t, s, srv, 1))
		underWay(t, s, i+2)
	}
	dials := s.dialer.dialed()
	leave()
	if err := outcome(t, left); !errors.Is(err, driver.ErrPending) {
		t.Fatalf("a caller that leaves gets %v, want an outcome that is pending", err)
	}
	srv.Resume(t)
	if rep := outcome(t, late); !rep.Ambiguous {
		t.Errorf("the outcome counts as known: %+v", rep)
	}
	for _, one := range others {
		one.Wait()
	}
	if n := s.dialer.dialed() - dials; n > 1 {
		t.Errorf("%d connections were made after one caller had left, want at most its own", n)
	}
}

// An option bounds the connections for requests, at any distance.
func TestConnectionsForRequestsAreNoMoreThanWereAllowed(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 6} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			s, srv := hangingFar(t, func(c *Config) { c.Connections = n })
			for i := range n {
				ask(t, s, srv, 1)
				underWay(t, s, i+1)
			}
			more := ask(t, s, srv, 2)
			queued(t, s, 2)
			srv.Resume(t)
			more.Wait()
		})
	}
}

// The connections of pipelines that a burst needed are closed when requests do without them for
// a while.
func TestConnectionsThatRequestsDoWithoutAreClosed(t *testing.T) {
	t.Parallel()
	s, srv := hangingFar(t, func(*Config) {})
	for i := range maxPipelines {
		ask(t, s, srv, 1)
		underWay(t, s, i+1)
	}
	srv.Resume(t)
	underWay(t, s, 0)
	q := s.requests.direct
	before := connections(t, srv.Client(t, patiently))
	redistest.Eventually(t, time.Minute, func(context.Context) error {
		q.mu.Lock()
		for _, p := range q.free[:len(q.free)-1] {
			p.link.used = p.link.used.Add(-2 * maxIdle) // as if so much time had gone by
		}
		links := len(q.links)
		q.mu.Unlock()
		if links == fewPipelines {
			return nil
		}
		take(t, s, "k")
		return fmt.Errorf("there are %d connections; want %d", links, fewPipelines)
	})
	redistest.Eventually(t, time.Minute, func(context.Context) error {
		if n := connections(t, srv.Client(t, patiently)); n > before-(maxPipelines-fewPipelines)+1 { // of this test
			return errors.New("the server still has the connections")
		}
		return nil
	})
	for i := range 2 * fewPipelines { // the others work
		take(t, s, fmt.Sprint("after", i))
	}
}

// connections counts the connections to the server.
func connections(t *testing.T, rdb *redis.Client) int64 {
	t.Helper()
	list, err := rdb.ClientList(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	return int64(strings.Count(list, "\n"))
}
