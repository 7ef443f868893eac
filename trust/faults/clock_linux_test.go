package faults

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/trust/internal/faultclock"
)

func TestServerClockAhead60s(t *testing.T) {
	srv := faultclock.Start(t)
	s := stage(t)
	rdb := srv.Client(t)
	a, b := s.locker(rdb, core.Watchdog(3*time.Second)), s.locker(rdb, core.Watchdog(3*time.Second))
	held := s.must(a, "k")
	srv.Step(t, time.Minute) // to the server, the lease is over
	next := s.must(b, "k")
	s.ordered(held, next)
	s.lost(held)
	s.wantErr(held.Release(t.Context()), core.ErrLost)
	s.renewed(next)
	s.release(next)
	// And back again: tokens grow all the same.
	srv.Step(t, 0)
	last := s.must(a, "k")
	if last.Token() <= next.Token() {
		t.Errorf("token %d after %d, when the clock was set back", last.Token(), next.Token())
	}
	s.release(last)
	s.clean(srv.Server)
}

func TestServerClockBehind60s(t *testing.T) {
	srv := faultclock.Start(t)
	s := stage(t)
	rdb := srv.Client(t)
	a, b := s.locker(rdb, core.Watchdog(3*time.Second)), s.locker(rdb, core.Watchdog(3*time.Second))
	held := s.must(a, "k")
	srv.Step(t, -time.Minute) // to the server, it lasts a minute more
	if left := rdb.PTTL(t.Context(), "interlock:{k}").Val(); left < 30*time.Second {
		t.Errorf("the server gives the lock %v: its clock did not step", left)
	}
	s.refused(b, "k", core.ErrHeld)
	s.renewed(held)
	got := later(func() error {
		next, err := b.Lock(context.Background(), "k")
		if err == nil && next.Token() <= held.Token() {
			err = fmt.Errorf("token %d after %d", next.Token(), held.Token())
		}
		if err != nil {
			return err
		}
		return next.Release(context.Background())
	})
	s.waits(rdb, "k")
	s.release(held)
	s.want(got, nil)
	s.clean(srv.Server)
}
