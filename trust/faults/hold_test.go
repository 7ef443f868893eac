//go:build long && unix

package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/internal/redistest"
	"github.com/interlock-go/interlock/trust/internal/faultnet"
)

func TestAThousandWaitersAndOneRelease(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	const processes, each = 4, 250
	held := s.must(s.locker(rdb, core.Unlisted()), "k")
	ctx, cancel := context.WithCancel(t.Context())
	granted := make(chan *core.Lease, processes*each)
	var others atomic.Int64
	var wg sync.WaitGroup
	var lockers []*core.Locker
	for range processes {
		l := s.locker(rdb, core.Unlisted())
		lockers = append(lockers, l)
		for range each {
			wg.Go(func() {
				lease, err := l.Lock(ctx, "k")
				switch {
				case err == nil:
					granted <- lease
				case errors.Is(err, context.Canceled):
					others.Add(1)
				default:
					t.Error(err)
				}
			})
		}
	}
	redistest.Eventually(t, soon, func(ctx context.Context) error {
		for _, l := range lockers {
			if h := l.Held(); len(h) != 1 || h[0].Waiters != each {
				return fmt.Errorf("waiting: %+v", h)
			}
		}
		if n := rdb.PubSubNumSub(ctx, "interlock:{k}:free").Val()["interlock:{k}:free"]; n != processes {
			return fmt.Errorf("%d processes listen", n)
		}
		if q := rdb.HGet(ctx, "interlock:{k}", "q").Val(); len(q) < processes*32 {
			return fmt.Errorf("in the list: %q", q)
		}
		return nil
	})
	srv.ResetStats(t)
	s.release(held)
	next := <-granted
	// The first in the list tries, the second after it before it hears that it was
	// too late, and perhaps the others: not each of the thousand.
	calls := srv.Calls(t)["evalsha"]
	t.Logf("one release and the grant after it: %d requests", calls)
	if calls > 1+2*processes {
		t.Errorf("one release cost %d requests", calls)
	}
	cancel()
	wg.Wait()
	if n := others.Load() + int64(len(granted)); n != processes*each-1 {
		t.Errorf("%d waiters are accounted for", n)
	}
	if len(granted) > 0 {
		t.Errorf("one release, %d holders", 1+len(granted))
	}
	s.release(next)
	s.clean(srv)
}

func TestMaximumHoldReached(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	a, b := s.locker(srv.Client(t), core.Watchdog(6*time.Second)), s.locker(srv.Client(t))
	for name, releases := range map[string]bool{"released": true, "forgotten": false} {
		held := s.must(a, name, core.MaxHold(200*time.Millisecond))
		s.refused(b, name, core.ErrHeld)
		s.lost(held, core.ErrMaxHold)
		if releases {
			s.release(held)
		}
		next := s.must(b, name) // by the release, or when the TTL is over
		if next.Token() <= held.Token() {
			t.Errorf("token %d after %d", next.Token(), held.Token())
		}
		s.wantErr(held.Err(), core.ErrMaxHold)
		s.release(next)
		if !releases {
			if err := held.Release(t.Context()); err == nil {
				t.Error("the release of a lock that is another's succeeded")
			}
		}
	}
	s.clean(srv)
}

func TestReleaseAfterExpiry(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	a, b := s.locker(rdb), s.locker(rdb)
	held := s.must(a, "k", core.TTL(100*time.Millisecond))
	next := s.succession(held, b)
	s.wantErr(held.Release(t.Context()), core.ErrLost)
	s.lost(held)
	if n := rdb.HLen(t.Context(), "interlock:{k}").Val(); n != 1 {
		t.Errorf("a late release touched the next holder's lock: %d fields", n)
	}
	if err := next.Check(t.Context()); err != nil {
		t.Error(err)
	}
	s.release(next)
	// Nobody has taken it meanwhile: lost all the same.
	held = s.must(a, "k", core.TTL(20*time.Millisecond))
	s.lost(held)
	s.wantErr(held.Release(t.Context()), core.ErrLost)
	s.clean(srv)
}

func TestRenewalRacingRelease(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	var wire faultnet.Wire
	a, b := s.locker(srv.Client(t, wire.Through), core.Watchdog(9*time.Second)), s.locker(rdb)
	// A renewal that is on its way for so long that the lock is released and
	// another's by then.
	sent, arrive := make(chan struct{}), make(chan struct{})
	var once sync.Once
	wire.Requests(func(k faultnet.Kind) faultnet.Fate {
		if k == faultnet.Renew {
			once.Do(func() { close(sent); <-arrive })
		}
		return faultnet.Pass
	})
	held := s.must(a, "k")
	<-sent
	s.release(held)
	next := s.must(b, "k", core.TTL(20*time.Second))
	close(arrive)
	s.release(s.must(a, "another")) // what comes after it has been executed
	if left := rdb.PTTL(t.Context(), "interlock:{k}").Val(); left > 20*time.Second || left < 5*time.Second {
		t.Errorf("a late renewal changed another's lease to %v", left)
	}
	if err := next.Check(t.Context()); err != nil {
		t.Error(err)
	}
	s.release(next)

	// And many that race as they like, with renewals every few milliseconds.
	const lease = 30 * time.Millisecond
	var seen referee
	var lost atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		l := s.locker(rdb, core.Watchdog(lease))
		wg.Go(func() {
			for i := range 100 {
				held, err := l.Lock(t.Context(), "race")
				if err != nil {
					t.Error(err)
					return
				}
				seen.enter(s, held)
				select { // about when it is renewed
				case <-held.Context().Done():
				case <-time.After(lease/3 + time.Duration(i%7-3)*time.Millisecond):
				}
				seen.leave(held)
				if err := release(held); errors.Is(err, core.ErrLost) {
					lost.Add(1) // for such a short one the machine may be too busy
				} else if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d of 400 leases of %v were lost", lost.Load(), lease)
	s.clean(srv)
}

// request is a payment of the account 1.
func request(t *testing.T) *http.Request {
	return httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/accounts/1", bytes.NewReader(nil))
}

// under serves requests under the lock of their account.
func under(l *core.Locker, handler http.HandlerFunc) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /accounts/{id}", httplock.Serialize(core.Serialize(l, "account/{id}"))(handler))
	return mux
}

func TestPanicInTheHandler(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	l, other := s.locker(srv.Client(t)), s.locker(srv.Client(t))
	boom := errors.New("boom")
	for name, f := range map[string]func(){
		"Do": func() {
			_ = l.Do(t.Context(), "account/1", func(context.Context) error { panic(boom) })
		},
		"handler": func() {
			under(l, func(http.ResponseWriter, *http.Request) { panic(boom) }).ServeHTTP(httptest.NewRecorder(), request(t))
		},
	} {
		func() {
			defer func() {
				if got := recover(); got != any(boom) {
					t.Errorf("%s: the panic came through as %v", name, got)
				}
			}()
			f()
		}()
		// Free at once, not when the lease of 30 s is over.
		begin := time.Now()
		if err := pass(other, "account/1"); err != nil || time.Since(begin) > soon {
			t.Errorf("%s: taken again after the panic: %v, %v", name, time.Since(begin), err)
		}
	}
	s.clean(srv)
}

func TestGoexitInTheHandler(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	l, other := s.locker(srv.Client(t)), s.locker(srv.Client(t))
	for name, f := range map[string]func(){
		"Do": func() {
			_ = l.Do(t.Context(), "account/1", func(context.Context) error { runtime.Goexit(); return nil })
		},
		"handler": func() {
			under(l, func(http.ResponseWriter, *http.Request) { runtime.Goexit() }).ServeHTTP(httptest.NewRecorder(), request(t))
		},
	} {
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			f()
			t.Errorf("%s: the goroutine went on", name)
		}()
		<-gone
		begin := time.Now() // the lease is of 30 s
		if err := pass(other, "account/1"); err != nil || time.Since(begin) > soon {
			t.Errorf("%s: taken again after the handler's end: %v, %v", name, time.Since(begin), err)
		}
	}
	s.clean(srv)
}
