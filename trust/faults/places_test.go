//go:build long && unix

package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/redistest"
)

// places are the holds of two processes on three keys: the first has "x" for itself, each
// shares "s", and each has a permit of "p", which has two.
type places struct {
	*scene
	alone            *core.Lease
	sharers, permits []*core.Lease
}

func (s *scene) places(a, b *core.Locker) *places {
	s.Helper()
	p := &places{scene: s, alone: s.must(a, "x")}
	for _, l := range []*core.Locker{a, b} {
		p.sharers = append(p.sharers, s.must(l, "s", core.Shared()))
		p.permits = append(p.permits, s.must(l, "p", core.Permits(2)))
	}
	return p
}

func (p *places) all() []*core.Lease {
	return slices.Concat([]*core.Lease{p.alone}, p.sharers, p.permits)
}

// kept wants all to be renewed, and another process to share, but to get no lock that they
// exclude.
func (p *places) kept(other *core.Locker) {
	p.Helper()
	p.renewed(p.all()...)
	p.barred(other, "x", core.ErrHeld)
	p.barred(other, "s", core.ErrHeld)
	p.barred(other, "p", core.ErrFull, core.Permits(2))
	p.barred(other, "p", core.ErrHeld)
	p.release(p.must(other, "s", core.Shared()))
}

// left wants callers of another process to wait, and to get their locks at the release: a
// permit of "p" from the first release on.
func (p *places) left(other *core.Locker, rdb *redis.Client) {
	p.Helper()
	next := later(func() error { return pass(other, "x") })
	writer := later(func() error { return pass(other, "s") })
	third := later(func() error { return pass(other, "p", core.Permits(2)) })
	for _, key := range []string{"x", "s", "p"} {
		p.waits(rdb, key)
	}
	p.release(p.permits[0])
	p.want(third, nil)
	p.release(p.permits[1])
	p.release(p.sharers...)
	p.want(writer, nil)
	p.release(p.alone)
	p.want(next, nil)
}

// gone wants all to be lost once another process has the locks that the server has forgotten:
// at once, and with greater tokens. A permit that a holder then gives back is not one more.
func (p *places) gone(other *core.Locker) {
	p.Helper()
	next := []*core.Lease{p.must(other, "x"), p.must(other, "s")}
	p.ordered(p.alone, next[0])
	for _, reader := range p.sharers {
		p.ordered(reader, next[1])
	}
	for range 2 {
		next = append(next, p.must(other, "p", core.Permits(2)))
	}
	for _, lease := range p.all() {
		p.lost(lease)
		p.wantErr(lease.Release(context.Background()), core.ErrLost)
	}
	p.barred(other, "p", core.ErrFull, core.Permits(2))
	p.release(next...)
}

// barred wants a try to be refused with this error. A first error of a busy machine does not
// count.
func (s *scene) barred(l *core.Locker, key string, want error, opts ...core.Option) {
	s.Helper()
	redistest.Eventually(s, soon, func(context.Context) error {
		lease, err := l.TryLock(context.Background(), key, opts...)
		switch {
		case err == nil:
			s.Errorf("%q was granted", key)
			return lease.Release(context.Background())
		case !errors.Is(err, want):
			return fmt.Errorf("error is %w, want %w", err, want)
		}
		return nil
	})
}

func TestRedisKilledWithAOF(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t, redistest.Args("--appendonly", "yes", "--appendfsync", "always"))
	a, b, c := s.locker(srv.Client(t), core.Watchdog(27*time.Second)), s.locker(srv.Client(t), core.Watchdog(27*time.Second)),
		s.locker(srv.Client(t))
	p := s.places(a, b)
	srv.Kill()
	s.refused(c, "x", core.ErrUnavailable)
	srv.Restart(t)
	p.kept(c)
	p.left(c, srv.Client(t))
	s.clean(srv)
}

func TestRedisKilledWithoutAOF(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	a, b, c := s.locker(srv.Client(t), core.Watchdog(3*time.Second)), s.locker(srv.Client(t), core.Watchdog(3*time.Second)),
		s.locker(srv.Client(t))
	p := s.places(a, b)
	srv.Kill()
	s.refused(c, "x", core.ErrUnavailable)
	srv.Restart(t) // it has forgotten everything
	p.gone(c)
	s.clean(srv)
}

func TestFailoverBeforeReplication(t *testing.T) {
	s := stage(t)
	r := newReplicas(t, s, 1)
	process := func() *core.Locker { return s.locker(r.client(t), core.Watchdog(3*time.Second)) }
	a, b, c := process(), process(), s.locker(r.client(t))
	safe := s.must(r.acknowledged(t, 1, 5*time.Second), "safe")
	shared := s.must(r.acknowledged(t, 1, 5*time.Second), "shared", core.Shared())
	r.link.Cut() // later writes do not reach the replica
	for _, kind := range []core.Option{nil, core.Shared(), core.Permits(1)} {
		_, err := r.acknowledged(t, 1, 100*time.Millisecond).Lock(t.Context(), "late", kind)
		s.wantErr(err, core.ErrNotReplicated)
	}
	p := s.places(a, b)
	r.promote(t)
	// Acknowledged locks are still there, the others are granted once more.
	s.refused(c, "safe", core.ErrHeld)
	s.refused(c, "shared", core.ErrHeld)
	p.gone(c)
	s.renewed(safe, shared)
	s.release(safe, shared)
	s.clean(r.last)
}

// pass takes a lock, or a place, and gives it back.
func pass(l *core.Locker, key string, opts ...core.Option) error {
	lease, err := patiently(l, key, new(atomic.Int64), opts...)
	if err != nil {
		return err
	}
	return release(lease)
}
