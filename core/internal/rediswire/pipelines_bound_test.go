//go:build integration

package rediswire

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/internal/redistest"
)

// hangs returns a store with a server that hangs.
func hangs(t *testing.T, change func(*Config)) (*Store, *redistest.Server) {
	t.Helper()
	srv := redistest.Start(t)
	s := open(t, srv.Client(t), change)
	t.Cleanup(func() { _ = s.Close() })
	take(t, s, "warm")
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

// A caller that leaves breaks off its own connection. The requests of the others, which are
// under way at the same time, are carried out once.
func TestACallerThatLeavesBreaksOffNoConnectionOfOthers(t *testing.T) {
	t.Parallel()
	s, srv := hangs(t, func(*Config) {})
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
			s, srv := hangs(t, func(c *Config) { c.Connections = n })
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
