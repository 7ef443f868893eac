package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

// TestCallersThatWaitTogetherShareCalls has many callers ask for locks while the
// server is silent, so that their requests meet in few calls of the script. Each
// gets what it would have got alone.
func TestCallersThatWaitTogetherShareCalls(t *testing.T) {
	t.Parallel()
	const n, odd = 100, 50
	for name, c := range map[string]struct {
		before func(t *testing.T, srv *redistest.Server)
		calls  int64 // of scripts at most
		odd    error // what the odd one gets
		reason string
	}{
		"all free": {
			before: func(*testing.T, *redistest.Server) {}, calls: n / 4,
		},
		"one key is no lock": {
			before: func(t *testing.T, srv *redistest.Server) {
				if err := srv.Client(t).Set(t.Context(), fmt.Sprintf("interlock:{k%d}", odd), "x", 0).Err(); err != nil {
					t.Fatal(err)
				}
			},
			calls: n / 4, odd: core.ErrKeyOccupied, reason: "not a lock",
		},
		"one key is held": {
			before: func(t *testing.T, srv *redistest.Server) {
				other := newLocker(t, srv.Client(t))
				lease := lock(t, other, fmt.Sprint("k", odd))
				t.Cleanup(func() { release(t, lease) })
			},
			calls: n / 4, odd: core.ErrHeld,
		},
		"one key is forbidden": {
			before: func(t *testing.T, srv *redistest.Server) {
				err := srv.Client(t).Do(t.Context(), "ACL", "SETUSER", "default", "resetkeys",
					"~interlock:{k?}*", "~interlock:{k[0-46-9]?}*", "~interlock:{k5[1-9]}*").Err()
				if err != nil {
					t.Fatal(err)
				}
			},
			calls: n/4 + n, // those that would share one with it go alone
			odd:   core.ErrUnavailable, reason: "on a lock's key; the rule is",
		},
		"the script is unknown": {
			before: func(t *testing.T, srv *redistest.Server) {
				if err := srv.Client(t).ScriptFlush(t.Context()).Err(); err != nil {
					t.Fatal(err)
				}
			},
			calls: 2 * n, // it is sent along, by each alone
		},
	} {
		t.Run(name, func(t *testing.T) {
			srv := redistest.Start(t)
			store, err := redisstore.New(srv.Client(t), redisstore.Timeout(time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = store.Close() })
			l, err := core.New(store)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := l.Close(context.Background()); err != nil {
					t.Error(err)
				}
			})
			release(t, lock(t, l, "warm"))
			c.before(t, srv)
			srv.ResetStats(t)

			leases, errs := lockTogether(t, srv, l, n)

			calls := srv.Calls(t)
			if sent := calls["evalsha"] + calls["eval"]; sent > c.calls {
				t.Errorf("%d locks took %d calls of a script, want at most %d: %v", n, sent, c.calls, calls)
			}
			var all sync.WaitGroup
			for i := range n {
				if i == odd && c.odd != nil {
					if !errors.Is(errs[i], c.odd) || !strings.Contains(errs[i].Error(), c.reason) {
						t.Errorf("the odd one: %v, want %v: %q", errs[i], c.odd, c.reason)
					}
					continue
				}
				if errs[i] != nil {
					t.Errorf("k%d: %v", i, errs[i])
					continue
				}
				all.Go(func() {
					if err := confirm(t, leases[i]); err != nil {
						t.Errorf("k%d: Check: %v", i, err)
					}
					begin := time.Now()
					if errs[i] = leases[i].Release(t.Context()); stalled(errs[i], begin) {
						errs[i] = nil
					}
				})
			}
			all.Wait()
			for i, err := range errs {
				if err != nil && (i != odd || c.odd == nil) {
					t.Errorf("releasing k%d: %v", i, err)
				}
			}
		})
	}
}

// TestRenewalsShareCallsAndFailAlone keeps many leases, two of whose locks are
// spoilt in Redis: the others do not notice.
func TestRenewalsShareCallsAndFailAlone(t *testing.T) {
	t.Parallel()
	const n, watchdog = 100, 12 * time.Second
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	l := newLocker(t, rdb, core.Watchdog(watchdog))
	leases := make([]*core.Lease, n)
	for i := range leases {
		leases[i] = lock(t, l, fmt.Sprint("k", i))
	}
	if err := rdb.Del(t.Context(), "interlock:{k0}").Err(); err != nil {
		t.Fatal(err)
	}
	if err := rdb.Set(t.Context(), "interlock:{k1}", "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	first := leases[n-1].Deadline()
	srv.ResetStats(t)
	for _, lease := range leases[:2] {
		wantErr(t, ended(t, lease, 30*time.Second), core.ErrLost)
	}
	redistest.Eventually(t, 30*time.Second, func(context.Context) error {
		if !leases[n-1].Deadline().After(first.Add(watchdog / 3)) {
			return errors.New("the last is not renewed twice")
		}
		return nil
	})
	calls := srv.Calls(t)
	for _, lease := range leases[2:] {
		if err := lease.Err(); err != nil {
			t.Error(err)
		}
		release(t, lease)
	}
	for _, lease := range leases[:2] {
		wantErr(t, lease.Release(t.Context()), core.ErrLost)
	}
	if renewed := calls["hmget"]; calls["evalsha"] > renewed/2 {
		t.Errorf("%d renewals took %d calls of a script", renewed, calls["evalsha"])
	}
	t.Logf("%v", calls)
}

// TestLostRepliesOfSharedCallsLeaveLocksExclusive has callers of two processes
// use some keys, while some of them leave and replies are lost again and again:
// what was on its way must be nobody else's when it comes.
func TestLostRepliesOfSharedCallsLeaveLocksExclusive(t *testing.T) {
	srv := redistest.Start(t)
	var reads atomic.Int64
	w := newWire()
	w.replies(func([]byte) error {
		if reads.Add(1)%40 == 0 {
			return &net.OpError{Op: "read", Err: errors.New("reply lost by the test")}
		}
		return nil
	})
	var inside [20]atomic.Int32
	var last [20]atomic.Int64
	var all sync.WaitGroup
	var granted atomic.Int64
	for range 2 {
		l := newLocker(t, srv.Client(t, w.through))
		for g := range 40 {
			all.Go(func() {
				for i := range 50 {
					k := (g + i) % len(inside)
					ctx, cancel := bounded(20 * time.Second)
					if i%5 == 0 {
						ctx, cancel = bounded(time.Duration(g) * 100 * time.Microsecond)
					}
					lease, err := l.Lock(ctx, fmt.Sprint("k", k))
					if err == nil {
						granted.Add(1)
						if n := inside[k].Add(1); n != 1 {
							t.Errorf("%d inside k%d", n, k)
						}
						if before := last[k].Swap(lease.Token()); before >= lease.Token() {
							t.Errorf("k%d: token %d after %d", k, lease.Token(), before)
						}
						inside[k].Add(-1)
						if err := lease.Release(ctx); errors.Is(err, core.ErrLost) {
							t.Errorf("k%d: %v", k, err)
						}
					}
					cancel()
				}
			})
		}
	}
	all.Wait()
	if granted.Load() < 1000 {
		t.Errorf("%d locks were granted of 4000 that were asked for", granted.Load())
	}
	wantGone(t, srv.Client(t))
}
