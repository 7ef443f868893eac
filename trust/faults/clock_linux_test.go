//go:build long

package faults

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/fencing"
	"github.com/interlock-go/interlock/core/fencing/redisfence"
	"github.com/interlock-go/interlock/core/quorum"
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
	lost := s.handedOver(a, "k")
	srv.Step(t, -2*time.Second)
	s.deleted("k", 1, rdb)
	next := s.must(b, "k")
	s.fenced(rdb, lost, next)
	s.wantLost(lost)
	s.release(next)
	s.clean(srv.Server)
}

func TestQuorumClocksSetBackAfterHandOffs(t *testing.T) {
	servers := make([]*faultclock.Server, 5)
	for i := range servers {
		servers[i] = faultclock.Start(t)
	}
	s := stage(t)
	process := func() *core.Locker {
		nodes := make([]redis.UniversalClient, len(servers))
		for i, srv := range servers {
			nodes[i] = srv.Client(t)
		}
		// A node has half a second, since others may use the machine.
		store, err := quorum.New(nodes, quorum.AdmitYoung(), quorum.Logger(nowhere), quorum.NodeTimeout(500*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		return s.lockerOn(store, store.Close)
	}
	a, b := process(), process()
	lost := s.handedOver(a, "k")
	var nodes []*redis.Client
	for _, srv := range servers {
		srv.Step(t, -2*time.Second)
		nodes = append(nodes, srv.Client(t))
	}
	s.deleted("k", len(nodes)/2+1, nodes...) // a busy machine has it on a majority alone
	next := s.must(b, "k")
	s.fenced(servers[0].Client(t), lost, next)
	s.wantLost(lost)
	s.release(next)
}

// handedOver returns a lease whose lock was handed over in the process, three
// seconds after the server granted it.
func (s *scene) handedOver(l *core.Locker, key string) *core.Lease {
	s.Helper()
	for n := 1; ; n++ {
		first := s.must(l, key)
		got := make(chan *core.Lease, 1)
		failed := later(func() error {
			lease, err := l.Lock(context.Background(), key)
			got <- lease
			return err
		})
		time.Sleep(3 * time.Second) // the clock under test is the server's
		s.release(first)
		s.want(failed, nil)
		lease := <-got
		if lease.Token() == first.Token()+1 {
			return lease
		}
		// On a busy machine the second may not have waited by then.
		if n == 3 {
			s.Fatalf("token %d after %d: not handed over, or not by one", lease.Token(), first.Token())
		}
		s.release(lease)
	}
}

// deleted deletes a lock, which so many servers must have had at least.
func (s *scene) deleted(key string, least int, servers ...*redis.Client) {
	s.Helper()
	had := 0
	for _, rdb := range servers {
		redistest.Eventually(s, soon, func(ctx context.Context) error {
			n, err := rdb.Del(ctx, "interlock:{"+key+"}").Result()
			had += int(n)
			return err
		})
	}
	if had < least {
		s.Fatalf("%d servers had %q to delete, want %d", had, key, least)
	}
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
