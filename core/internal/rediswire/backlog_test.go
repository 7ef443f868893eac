//go:build integration

package rediswire

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/internal/redistest"
)

// hanging returns a store with a server that hangs. All its pipelines are under way,
// and wait for their answers for a minute.
func hanging(t *testing.T) (*Store, *redistest.Server) {
	t.Helper()
	srv := redistest.Start(t)
	s := open(t, srv.Client(t), func(set *Config) { set.Timeout = time.Minute })
	t.Cleanup(func() { _ = s.Close() })
	if _, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: "warm", Owner: "o", TTL: time.Minute}); err != nil {
		t.Fatal(err)
	}
	// The pipeline that has sent it would otherwise count as the first of those below, and
	// then send the first two of their requests together.
	underWay(t, s, 0)
	srv.ResetStats(t)
	srv.Pause(t)
	var all sync.WaitGroup
	t.Cleanup(func() {
		srv.Resume(t) // after a failure too nothing waits for a server that hangs
		all.Wait()
	})
	for i := range maxPipelines {
		all.Go(func() {
			ask := driver.AcquireRequest{Key: fmt.Sprint("pipeline", i), Owner: "o", TTL: time.Minute}
			if _, err := s.Acquire(context.Background(), ask); err != nil {
				t.Error(err)
			}
		})
		underWay(t, s, i+1)
	}
	return s, srv
}

// underWay waits until so many pipelines have sent the queued requests.
func underWay(t *testing.T, s *Store, n int) {
	t.Helper()
	redistest.Eventually(t, time.Minute, func(context.Context) error {
		s.requests.direct.mu.Lock()
		defer s.requests.direct.mu.Unlock()
		if s.requests.direct.busy != n || len(s.requests.direct.queue) != 0 {
			return fmt.Errorf("%d pipelines are under way, %d requests wait", s.requests.direct.busy, len(s.requests.direct.queue))
		}
		return nil
	})
}

// queued waits until so many requests wait for a pipeline.
func queued(t *testing.T, s *Store, n int) {
	t.Helper()
	redistest.Eventually(t, time.Minute, func(context.Context) error {
		s.requests.direct.mu.Lock()
		defer s.requests.direct.mu.Unlock()
		if len(s.requests.direct.queue) != n {
			return fmt.Errorf("%d requests wait, want %d", len(s.requests.direct.queue), n)
		}
		return nil
	})
}

// When a server that hung returned, it got all requests of the meantime. Their callers
// had long left, so the locks were given up again one by one, and no other caller got
// any.
func TestRequestsWhoseCallersHaveLeftAreNotSent(t *testing.T) {
	t.Parallel()
	const n = 1000
	s, srv := hanging(t)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	type outcome struct {
		rep driver.Reply
		err error
	}
	late := make(chan outcome, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			_, err := s.Acquire(ctx, driver.AcquireRequest{
				Key: fmt.Sprint("k", i), Owner: "o", TTL: time.Minute,
				Late: func(rep driver.Reply, err error) { late <- outcome{rep, err} },
			})
			if !errors.Is(err, driver.ErrPending) {
				t.Errorf("a caller that leaves got %v", err)
			}
		})
	}
	queued(t, s, n)
	leave()
	all.Wait()
	srv.Resume(t)
	for range n {
		if o := <-late; !errors.Is(o.err, driver.ErrNotReady) || o.rep.Ambiguous || o.rep.Granted {
			t.Fatalf("a request that was not sent ended with %+v, %v", o.rep, o.err)
		}
	}
	underWay(t, s, 0)
	if calls := srv.Calls(t); calls["evalsha"] > maxPipelines { // eval is of probes
		t.Errorf("the server was asked for what no caller wanted any more: %v", calls)
	}
	if keys := srv.Client(t).Keys(t.Context(), "interlock:{k*").Val(); len(keys) != 0 {
		t.Errorf("%d keys are left of requests without callers", len(keys))
	}
}

// A release that could not be sent in time is not dropped in silence: its caller gets an
// error, and has it done later.
func TestAReleaseThatWasNotSentInTimeSaysSo(t *testing.T) {
	t.Parallel()
	s, srv := hanging(t)
	ask := driver.ReleaseRequest{Key: "warm", Owner: "o", TTL: time.Minute, Deadline: time.Now()}
	released := make(chan error, 1)
	go func() {
		_, err := s.Release(context.Background(), ask)
		released <- err
	}()
	queued(t, s, 1)
	srv.Resume(t)
	if err := <-released; !errors.Is(err, driver.ErrNotReady) {
		t.Errorf("a release that was not sent ended with %v", err)
	}
	if n, err := srv.Client(t, patiently).Exists(t.Context(), s.names.lock("warm")).Result(); n != 1 || err != nil {
		t.Errorf("the lock is there %d times, %v", n, err)
	}
}

// Callers that would wait for long get an error that asks them to come back; they are
// not queued without end.
func TestTheQueueToAServerThatHangsIsBounded(t *testing.T) {
	t.Parallel()
	const beyond = 100
	s, srv := hanging(t)
	var full, answered atomic.Int64
	var all sync.WaitGroup
	all.Add(maxQueued + beyond)
	lock, owner, look := "interlock:{k}", "o", int64(0)
	for range maxQueued + beyond {
		r := new(Request)
		r.Make(s, renewScript, lock, make([]any, callArgs+3)).Keys(&lock).Args(&owner, &look)
		r.Asks = true
		r.Detach(func() {
			switch {
			case r.Err == nil:
				answered.Add(1)
			case errors.Is(Wrap(r.Err), driver.ErrNotReady) && !r.Ambiguous:
				full.Add(1)
			default:
				t.Error(r.Err)
			}
			all.Done()
		}).Start()
	}
	if n := full.Load(); n != beyond {
		t.Errorf("%d requests were refused by a queue of %d, want %d", n, maxQueued, beyond)
	}
	srv.Resume(t)
	all.Wait()
	if n := answered.Load(); n != maxQueued {
		t.Errorf("%d requests of the queue were answered, want %d", n, maxQueued)
	}
}
