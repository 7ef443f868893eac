//go:build long && unix

package faults

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
	"github.com/interlock-go/interlock/trust/internal/faultnet"
)

func TestHalfOpenConnection(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	var wire faultnet.Wire
	old := faultnet.NewProxy(t, srv.Addr())
	wire.Lead(old.Addr())
	l, other := s.locker(srv.Client(t, wire.Through), core.Watchdog(10*time.Second)), s.locker(rdb)
	held := s.must(l, "held")
	theirs := s.must(other, "awaited")
	got := later(func() error { return pass(l, "awaited") })
	s.waits(rdb, "awaited")
	// All connections of the process are dead and do not know it: to send, to renew
	// and to listen. New ones are good.
	wire.Lead(srv.Addr())
	old.Cut()
	begin := time.Now()
	if err := pass(l, "new"); err != nil {
		t.Errorf("Lock over dead connections: %v", err)
	}
	t.Logf("a lock over dead connections took %v", time.Since(begin))
	s.renewed(held)
	s.refused(other, "held", core.ErrHeld)
	s.release(theirs) // is announced to a dead connection
	begin = time.Now()
	s.want(got, nil)
	t.Logf("the release was heard after %v", time.Since(begin))
	s.release(held)
	s.clean(srv)
}

func TestLatencyJustBelowTheTTL(t *testing.T) {
	const lease = 2 * time.Second
	for name, kind := range map[string]core.Option{"fixed": core.TTL(lease), "renewed": core.Watchdog(lease)} {
		t.Run(name, func(t *testing.T) {
			s := stage(t)
			srv := redistest.Start(t)
			proxy := faultnet.NewProxy(t, srv.Addr())
			l := s.lockerWith(srv.Client(t, proxy.Through), []redisstore.Option{redisstore.Timeout(5 * time.Second)}, kind)
			other := s.locker(srv.Client(t))
			s.release(s.must(l, "warm")) // the connection is there; its scripts are known
			proxy.Delay(lease * 17 / 20)
			begin := time.Now()
			held := s.must(l, "k")
			// What is left of it is less than the server thinks, never more: it has
			// counted from before it was asked.
			if left := time.Until(held.Deadline()); left > lease-lease*17/20 {
				t.Errorf("%v are left of a lease of %v after %v on the way", left, lease, time.Since(begin))
			}
			next := s.succession(held, other)
			s.lost(held)
			s.release(next)
			s.wantErr(held.Release(t.Context()), core.ErrLost)
			s.clean(srv)
		})
	}
}

// The holder is cut off from Redis, silently and in both directions, many times. Each time
// its context must have ended when another caller gets what it kept out: the lock, the
// lock that it shared, or its permit.
func TestPartitionOfTheHolder(t *testing.T) {
	for name, c := range map[string]struct {
		held, wanted core.Option
		rounds       int64
	}{
		"lock":   {core.Watchdog(cutLease), core.Wait(2 * soon), 100},
		"shared": {core.Shared(), core.Wait(2 * soon), 20},
		"permit": {core.Permits(1), core.Permits(1), 20},
	} {
		t.Run(name, func(t *testing.T) {
			s := stage(t)
			srv := redistest.Start(t)
			next := s.locker(srv.Client(t))
			var told, untold atomic.Int64
			var wg sync.WaitGroup
			for w := range 10 {
				proxy := faultnet.NewProxy(t, srv.Addr())
				holder := s.locker(srv.Client(t, proxy.Through), core.Watchdog(cutLease))
				wg.Go(func() {
					for i := 0; told.Load() < c.rounds && untold.Load() < 3*c.rounds; i++ {
						runs, err := s.cutOff(proxy, holder, next, fmt.Sprintf("k%d-%d", w, i), c.held, c.wanted)
						if err != nil {
							t.Error(err)
							return
						}
						if runs {
							told.Add(1)
						} else {
							untold.Add(1)
						}
					}
				})
			}
			wg.Wait()
			t.Logf("%d rounds, and %d in which the machine ran no timer in time", told.Load(), untold.Load())
			if told.Load() < c.rounds {
				t.Errorf("%d rounds of %d", told.Load(), c.rounds)
			}
			s.clean(srv)
		})
	}
}

// cutLease is the lease of a holder that is cut off.
const cutLease = 1500 * time.Millisecond

// cutOff is one round. A machine that is too busy to run a timer of the test's own runs
// none of the watchdog's either; such a round shows nothing about the context.
func (s *scene) cutOff(proxy *faultnet.Proxy, holder, next *core.Locker, key string, held, wanted core.Option) (runs bool, err error) {
	mine, err := patiently(holder, key, new(atomic.Int64), held)
	if err != nil {
		return false, err
	}
	proxy.Cut()
	defer proxy.Mend()
	deadline, control := mine.Deadline(), make(chan struct{})
	time.AfterFunc(time.Until(deadline)+cutLease/200, func() { close(control) })
	theirs, err := patiently(next, key, new(atomic.Int64), wanted)
	if err != nil {
		return false, err
	}
	select {
	case <-control:
		runs = mine.Deadline().Equal(deadline) // else it was renewed before the cut
	default:
	}
	if mine.Err() == nil {
		s.Errorf("%s: another is granted while the holder that is cut off trusts its lease", key)
	}
	if runs && mine.Context().Err() == nil {
		s.Errorf("%s: another is granted while the context of the holder that is cut off goes on", key)
	}
	s.lost(mine)
	if theirs.Token() <= mine.Token() {
		s.Errorf("%s: token %d after %d", key, theirs.Token(), mine.Token())
	}
	s.wantErr(mine.Release(context.Background()), core.ErrLost)
	return runs, release(theirs)
}
