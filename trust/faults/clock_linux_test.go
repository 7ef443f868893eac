//go:build long

package faults

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/fencing"
	"github.com/interlock-go/interlock/core/fencing/redisfence"
	"github.com/interlock-go/interlock/internal/redistest"
	"github.com/interlock-go/interlock/trust/internal/faultclock"
)

func TestServerClockAhead60s(t *testing.T) {
	srv := faultclock.Start(t)
	s := stage(t)
	rdb := srv.Client(t)
	a, b := s.locker(rdb, core.Watchdog(9*time.Second)), s.locker(rdb, core.Watchdog(9*time.Second))
	held := s.must(a, "k")
	srv.Step(t, time.Minute) // to the server, the lease has ended
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
	a, b := s.locker(rdb, core.Watchdog(9*time.Second)), s.locker(rdb, core.Watchdog(9*time.Second))
	held := s.must(a, "k")
	srv.Step(t, -time.Minute) // to the server, it lasts a minute more
	if left := rdb.PTTL(t.Context(), "interlock:{k}").Val(); left < 30*time.Second {
		t.Errorf("the server gives the lock %v: its clock did not step", left)
	}
	s.refused(b, "k", core.ErrHeld)
	s.renewed(held)
	got := later(func() error {
		next, err := patiently(b, "k", new(atomic.Int64))
		if err == nil && next.Token() <= held.Token() {
			err = fmt.Errorf("token %d after %d", next.Token(), held.Token())
		}
		if err != nil {
			return err
		}
		return release(next)
	})
	s.waits(rdb, "k")
	s.release(held)
	s.want(got, nil)
	s.clean(srv.Server)
}

// The clock is set back to a time after the acquire, and the lock is lost after a
// hand-off that the server was never told: the fence has to accept the present
// holder and to refuse the lost one.
func TestServerClockSetBackAfterHandOffs(t *testing.T) {
	srv := faultclock.Start(t)
	s := stage(t)
	rdb := srv.Client(t)
	a, b := s.locker(rdb), s.locker(rdb)
	first := s.must(a, "k")
	var lost *core.Lease
	handed := later(func() (err error) { lost, err = patiently(a, "k", new(atomic.Int64)); return err })
	redistest.Eventually(t, soon, func(context.Context) error {
		if a.Held()[0].Waiters == 0 {
			return errors.New("no caller waits")
		}
		return nil
	})
	srv.Step(t, 3*time.Second) // as if so much time had passed
	s.release(first)
	s.want(handed, nil)
	if lost.Token() != first.Token()+1 {
		t.Fatalf("token %d after %d: not handed over, or not by one", lost.Token(), first.Token())
	}
	srv.Step(t, time.Second)
	if n := rdb.Del(t.Context(), "interlock:{k}").Val(); n != 1 {
		t.Fatal("the server has no lock to delete")
	}
	next := s.must(b, "k")
	s.fenced(rdb, lost, next)
	s.wantLost(lost)
	s.release(next)
	s.clean(srv.Server)
}

// fenced lets the present holder of a lock write, and wants a value in Redis to
// refuse the lost one from then on.
func (s *scene) fenced(rdb *redis.Client, lost, present *core.Lease) {
	s.Helper()
	s.ordered(lost, present)
	values, ctx := redisfence.New(rdb), context.Background()
	write := func(lease *core.Lease, text string) error {
		return values.Set(ctx, redisfence.Change{
			Hold: redisfence.Hold{Key: "value", Token: lease.Token()}, Set: map[string]string{"by": text},
		})
	}
	s.wantErr(write(lost, "lost"), nil)
	s.wantErr(write(present, "present"), nil)
	s.wantErr(write(lost, "lost"), fencing.ErrStale)
}
