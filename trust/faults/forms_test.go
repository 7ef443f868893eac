//go:build long && unix

package faults

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/internal/redistest"
)

// This file has short forms of the tests' actions on locks.

// patiently takes a lock although the store may not answer for a while, and counts
// how often that was so: on a machine that others use, a second can be too short.
func patiently(l *core.Locker, key string, failed *atomic.Int64, opts ...core.Option) (*core.Lease, error) {
	for over := time.Now().Add(10 * soon); ; failed.Add(1) {
		lease, err := l.Lock(context.Background(), key, append([]core.Option{core.Wait(2 * soon)}, opts...)...)
		if !errors.Is(err, core.ErrUnavailable) || time.Now().After(over) {
			return lease, err
		}
	}
}

// must takes a lock.
func (s *scene) must(l *core.Locker, key string, opts ...core.Option) *core.Lease {
	s.Helper()
	lease, err := patiently(l, key, new(atomic.Int64), opts...)
	if err != nil {
		s.Fatalf("Lock(%q): %v", key, err)
	}
	return lease
}

// release gives a lock back. A release that had no answer in its time is no error: the
// locker goes on with it, and clean waits for that.
func release(lease *core.Lease) error {
	begin := time.Now()
	err := lease.Release(context.Background())
	if time.Since(begin) >= 900*time.Millisecond && errors.Is(err, core.ErrUnavailable) && !errors.Is(err, core.ErrLost) {
		return nil
	}
	return err
}

// wantLost wants the release of a lock that another has, or no process, to say that it is
// lost. A release that had no answer in its time cannot say it.
func (s *scene) wantLost(lease *core.Lease) {
	s.Helper()
	begin := time.Now()
	err := lease.Release(context.Background())
	if time.Since(begin) >= 900*time.Millisecond && errors.Is(err, core.ErrUnavailable) {
		s.Logf("Release(%q): %v", lease.Key(), err)
		return
	}
	s.wantErr(err, core.ErrLost)
}

// try takes a lock if it comes within a time, zero for at once, and gives it back.
func try(l *core.Locker, key string, within time.Duration) error {
	lease, err := l.Lock(context.Background(), key, core.Wait(within))
	if err != nil {
		return err
	}
	return release(lease)
}

func (s *scene) release(leases ...*core.Lease) {
	s.Helper()
	for _, lease := range leases {
		if err := release(lease); err != nil {
			s.Errorf("Release(%q): %v", lease.Key(), err)
		}
	}
}

// refused wants a lock never to be granted, and the refusal to be of this error with
// these words. A first error of a busy machine, that an answer did not come in time,
// does not count.
func (s *scene) refused(l *core.Locker, key string, want error, texts ...string) {
	s.Helper()
	redistest.Eventually(s, soon, func(context.Context) error {
		err := try(l, key, 0)
		switch {
		case err == nil:
			s.Errorf("%q was granted", key)
			return nil
		case !errors.Is(err, want):
			return fmt.Errorf("error is %w, want %w", err, want)
		case errors.Is(want, driver.ErrNotReady) && !errors.Is(err, core.ErrUnavailable):
			return fmt.Errorf("error is %w, want ErrUnavailable too", err)
		}
		for _, text := range texts {
			if !strings.Contains(err.Error(), text) {
				return fmt.Errorf("the error does not say %q: %w", text, err)
			}
		}
		return nil
	})
}

func (s *scene) wantErr(err, want error) {
	s.Helper()
	if !errors.Is(err, want) {
		s.Errorf("error is %v, want %v", err, want)
	}
}

// lost wants a lease's context to end by a cause, ErrLost unless another is given,
// and Err and Release to say the same.
func (s *scene) lost(lease *core.Lease, cause ...error) {
	s.Helper()
	want := append(cause, core.ErrLost)[0]
	select {
	case <-lease.Context().Done():
		s.wantErr(context.Cause(lease.Context()), want)
		s.wantErr(lease.Err(), want)
	case <-time.After(2 * soon):
		s.Fatalf("the context of %q has not ended", lease.Key())
	}
}

// renewed waits until leases were renewed, past their present deadlines.
func (s *scene) renewed(leases ...*core.Lease) {
	s.Helper()
	had := make([]time.Time, len(leases))
	for i, lease := range leases {
		had[i] = lease.Deadline()
	}
	redistest.Eventually(s, soon, func(context.Context) error {
		for i, lease := range leases {
			if err := lease.Err(); err != nil {
				return err
			}
			if !lease.Deadline().After(had[i]) {
				return fmt.Errorf("%q was not renewed", lease.Key())
			}
		}
		return nil
	})
}

// later runs f on a goroutine and returns the channel of its error.
func later(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

// want waits for an outcome.
func (s *scene) want(done <-chan error, want error) {
	s.Helper()
	select {
	case err := <-done:
		if want == nil && err != nil {
			s.Errorf("it failed: %v", err)
		} else if want != nil {
			s.wantErr(err, want)
		}
	case <-time.After(2 * soon):
		s.Fatal("it did not come to an end")
	}
}

// waits waits until a process is in the list of a key, and listens to its calls.
func (s *scene) waits(rdb *redis.Client, key string) {
	s.Helper()
	redistest.Eventually(s, soon, func(ctx context.Context) error {
		if _, err := rdb.HGet(ctx, "interlock:{"+key+"}", "q").Result(); err != nil {
			return fmt.Errorf("no process waits: %w", err)
		}
		listening, err := rdb.PubSubChannels(ctx, "interlock:wanted:*").Result()
		if err == nil && len(listening) == 0 {
			err = errors.New("no process listens")
		}
		return err
	})
}

// succession has a second process wait for a lock that a first one holds, and
// wants the first to know that its lease has ended by the time that the second has it.
func (s *scene) succession(first *core.Lease, second *core.Locker) *core.Lease {
	s.Helper()
	next := s.must(second, first.Key())
	if err := first.Err(); err == nil {
		s.Errorf("two trust that they hold %q, by the tokens %d and %d", first.Key(), first.Token(), next.Token())
	} else {
		s.wantErr(err, core.ErrLost)
	}
	if next.Token() <= first.Token() {
		s.Errorf("%q: token %d after %d", first.Key(), next.Token(), first.Token())
	}
	return next
}

// resource is a resource with a memory for the last token: the claim of a token before the
// read, and the write under it.
type resource struct {
	mu    sync.Mutex
	token int64
	value string
}

// errStale is the answer to a token that is smaller than one seen before.
var errStale = errors.New("the resource has seen a greater token")

func (r *resource) write(token int64, value string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if token < r.token {
		return fmt.Errorf("%w: %d after %d", errStale, token, r.token)
	}
	r.token, r.value = token, value
	return nil
}

// ordered wants the tokens of two that may both believe to hold the lock to be in
// the order of their grants: the write of the first, after the second has written,
// is refused.
func (s *scene) ordered(first, second *core.Lease) {
	s.Helper()
	var r resource
	if err := r.write(first.Token(), "first"); err != nil {
		s.Error(err)
	}
	if err := r.write(second.Token(), "second"); err != nil {
		s.Errorf("the later holder is refused: %v", err)
	}
	s.wantErr(r.write(first.Token(), "late"), errStale)
	if r.value != "second" {
		s.Errorf("the resource holds what the late write says: %q", r.value)
	}
}
