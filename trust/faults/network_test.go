//go:build long && unix

package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
	"github.com/interlock-go/interlock/trust/internal/faultnet"
)

// first lets only the first request of a kind meet its fate.
func first(kind faultnet.Kind, fate faultnet.Fate) (f func(faultnet.Kind) faultnet.Fate, met func() bool) {
	var done atomic.Bool
	return func(k faultnet.Kind) faultnet.Fate {
		if k == kind && done.CompareAndSwap(false, true) {
			return fate
		}
		return faultnet.Pass
	}, done.Load
}

func onReply(f func(faultnet.Kind) faultnet.Fate) func(faultnet.Kind, []byte) faultnet.Fate {
	return func(k faultnet.Kind, _ []byte) faultnet.Fate { return f(k) }
}

func TestExecutedButReplyLost(t *testing.T) {
	// Lost with its connection, and lost so that nobody notices.
	for name, fate := range map[string]faultnet.Fate{"broken": faultnet.Break, "silent": faultnet.Swallow} {
		for _, kind := range []faultnet.Kind{faultnet.Acquire, faultnet.Renew, faultnet.Release} {
			t.Run(string(kind)+" "+name, func(t *testing.T) {
				s := stage(t)
				srv := redistest.Start(t)
				rdb := srv.Client(t)
				var wire faultnet.Wire
				l := s.lockerWith(srv.Client(t, wire.Through), []redisstore.Option{redisstore.Timeout(200 * time.Millisecond)},
					core.Watchdog(6*time.Second))
				s.release(s.must(l, "warm"))
				lose, met := first(kind, fate)
				wire.Replies(onReply(lose))
				lease := s.must(l, "k")
				if n := rdb.HLen(t.Context(), "interlock:{k}").Val(); n != 1 {
					t.Errorf("the lock has %d fields, want its owner alone", n)
				}
				s.refused(s.locker(rdb), "k", core.ErrHeld)
				s.renewed(lease)
				s.release(lease)
				if !met() {
					t.Error("no reply was lost: the test proves nothing")
				}
				s.clean(srv)
			})
		}
	}
	t.Run("all", func(t *testing.T) {
		s := stage(t)
		srv := redistest.Start(t)
		var wire faultnet.Wire
		l := s.locker(srv.Client(t, wire.Through))
		s.release(s.must(l, "warm"))
		wire.Replies(func(faultnet.Kind, []byte) faultnet.Fate { return faultnet.Break })
		// It is executed each time, and nobody knows.
		_, err := l.Lock(t.Context(), "k")
		s.wantErr(err, core.ErrUnavailable)
		wire.Replies(nil)
		s.clean(srv)
	})
}

func TestHalfOpenConnection(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	var wire faultnet.Wire
	old := faultnet.NewProxy(t, srv.Addr())
	wire.Lead(old.Addr())
	const lease = 10 * time.Second
	l, other := s.locker(srv.Client(t, wire.Through), core.Watchdog(lease)), s.locker(rdb)
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
	t.Logf("the release was heard of after %v", time.Since(begin))
	s.release(held)
	s.clean(srv)
}

func TestConnectionReset(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	proxy := faultnet.NewProxy(t, srv.Addr())
	l, other := s.locker(srv.Client(t, proxy.Through), core.Watchdog(9*time.Second)), s.locker(srv.Client(t))
	held := s.must(l, "held")
	proxy.Reset()
	begin := time.Now()
	_, err := l.Lock(t.Context(), "k") // what is asked is executed, the answer is a reset
	s.wantErr(err, core.ErrUnavailable)
	if took := time.Since(begin); took > soon {
		t.Errorf("it took %v to say so", took)
	}
	s.refused(other, "held", core.ErrHeld)
	proxy.Mend()
	s.renewed(held) // what was reset within the lease is not noticed
	if err := pass(other, "k"); err != nil {
		t.Error(err)
	}
	s.release(held)
	s.clean(srv)
}

func TestLatencyAboveTheTimeout(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	proxy := faultnet.NewProxy(t, srv.Addr())
	var wire faultnet.Wire
	wire.Lead(proxy.Addr())
	l := s.lockerWith(srv.Client(t, wire.Through), []redisstore.Option{redisstore.Timeout(400 * time.Millisecond)},
		core.Watchdog(3*time.Second))
	other := s.locker(srv.Client(t))
	redistest.Eventually(t, soon, func(context.Context) error { return pass(l, "warm") }) // the connection is there
	held := s.must(l, "held")
	proxy.Delay(1600 * time.Millisecond)
	_, err := l.Lock(t.Context(), "k")
	s.wantErr(err, core.ErrUnavailable)
	next := s.succession(held, other) // no renewal is confirmed
	s.lost(held)
	s.wantErr(held.Release(t.Context()), core.ErrLost)
	s.release(next)
	wire.Lead(srv.Addr())
	wire.Break()
	redistest.Eventually(t, soon, func(context.Context) error { return pass(l, "k") })
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

func TestDialRefused(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	var wire faultnet.Wire
	l, other := s.locker(srv.Client(t, wire.Through), core.Watchdog(9*time.Second)), s.locker(srv.Client(t))
	held := s.must(l, "held")
	wire.Refuse(true)
	wire.Break()
	begin := time.Now()
	_, err := l.Lock(t.Context(), "k")
	s.wantErr(err, core.ErrUnavailable)
	s.wantText(err, "refused")
	if took := time.Since(begin); took > soon {
		t.Errorf("it took %v to say so", took)
	}
	s.refused(other, "held", core.ErrHeld)
	wire.Refuse(false)
	redistest.Eventually(t, soon, func(context.Context) error { return pass(l, "k") })
	s.renewed(held)
	s.release(held)

	// A server that is not there at all.
	s.refused(s.locker(redisClient(t, "127.0.0.1:1")), "k", core.ErrUnavailable, "refused")
	s.clean(srv)
}

func redisClient(t *testing.T, addr string) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

func TestConnectionPoolExhaustedByOthers(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	rdb := srv.Client(t, func(o *redis.Options) { o.PoolSize, o.PoolTimeout = 2, 50*time.Millisecond })
	l := s.locker(rdb, core.Watchdog(9*time.Second))
	held := s.must(l, "held")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var blocked []<-chan error
	for range 2 {
		blocked = append(blocked, later(func() error {
			for {
				err := rdb.BLPop(ctx, time.Minute, "nothing").Err()
				if !errors.Is(err, redis.ErrPoolTimeout) { // else a ping had the connection
					return err
				}
			}
		}))
	}
	redistest.Eventually(t, soon, func(ctx context.Context) error {
		if err := rdb.Ping(ctx).Err(); !errors.Is(err, redis.ErrPoolTimeout) {
			return fmt.Errorf("the pool is not exhausted: %w", err)
		}
		return nil
	})
	for range 2 {
		s.renewed(held)
	}
	if err := pass(l, "k"); err != nil {
		t.Error(err)
	}
	s.release(held)
	if err := srv.Client(t).RPush(t.Context(), "nothing", 1, 2).Err(); err != nil {
		t.Error(err)
	}
	for _, done := range blocked {
		s.want(done, nil)
	}
	s.clean(srv)
}

func TestMessageLost(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	var wire faultnet.Wire
	const lease = 6 * time.Second
	holder, waiter := s.locker(rdb, core.Watchdog(lease)), s.locker(srv.Client(t, wire.Through))
	var lost, looks atomic.Int32
	wire.Replies(func(k faultnet.Kind, reply []byte) faultnet.Fate {
		if k == faultnet.Acquire {
			looks.Add(1)
		}
		if bytes.Contains(reply, []byte("\r\nmessage\r\n")) {
			lost.Add(1)
			return faultnet.Swallow
		}
		return faultnet.Pass
	})
	held := s.must(holder, "k")
	got := later(func() error { return pass(waiter, "k") })
	s.waits(rdb, "k")
	redistest.Eventually(t, soon, func(ctx context.Context) error {
		// Listed, so that it is announced; and it has looked again since it listens.
		if !rdb.HExists(ctx, "interlock:{k}", "q").Val() || looks.Load() < 2 {
			return errors.New("nobody waits")
		}
		return nil
	})
	begin := time.Now()
	s.release(held)
	s.want(got, nil) // it looks when the holder's lease must be over
	took := time.Since(begin)
	if lost.Load() == 0 {
		t.Error("no message was lost: the test proves nothing")
	}
	if took > lease+soon/3 {
		t.Errorf("the waiter slept for %v on a free key", took)
	}
	t.Logf("found free after %v", took)
	s.clean(srv)
}

func TestSubscriberConnectionKilled(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	holder, waiter := s.locker(rdb), s.locker(rdb)
	held := s.must(holder, "k")
	got := later(func() error { return pass(waiter, "k") })
	for range 3 {
		s.waits(rdb, "k")
		if err := rdb.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err(); err != nil {
			t.Fatal(err)
		}
	}
	s.waits(rdb, "k")
	// Killed and released in one breath: the message is lost for certain.
	if _, err := rdb.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.ClientKillByFilter(t.Context(), "TYPE", "pubsub")
		p.Del(t.Context(), "interlock:{k}")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	s.want(got, nil)
	t.Logf("found free after %v", time.Since(begin))
	s.wantLost(held)
	s.clean(srv)
}
