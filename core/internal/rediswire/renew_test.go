//go:build integration

package rediswire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
)

// leases are what a round is asked to renew. Every third lease is held.
type leases struct {
	t     *testing.T
	store *Store
	n     int
	told  []int // how often
}

func newLeases(t *testing.T, s *Store, n int) *leases {
	t.Helper()
	l := &leases{t: t, store: s, n: n, told: make([]int, n)}
	for i := 0; i < n; i += 3 {
		rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: l.key(i), Owner: "me", TTL: time.Hour})
		if err != nil || !rep.Granted {
			t.Fatalf("%s: %v, %v", l.key(i), rep, err)
		}
	}
	return l
}

func (l *leases) key(i int) string { return fmt.Sprint("k", i) }

// renew renews all in one round. It returns how many had which outcome.
func (l *leases) renew(ctx context.Context, told func()) (renewed, refused, unanswered int) {
	l.t.Helper()
	clear(l.told)
	l.store.renew(ctx, false, l.n, func(i int, r *Renewal) {
		r.Ask(renewScript, l.store.names.lock(l.key(i)), "me", time.Hour)
	}, func(i int, _ bool, err error) {
		l.told[i]++
		held := i%3 == 0
		switch {
		case held && err == nil:
			renewed++
		case !held && errors.Is(err, driver.ErrDeleted):
			refused++
		case errors.Is(err, ErrNoAnswer):
			unanswered++
		default:
			l.t.Errorf("lease %d, held %v: %v", i, held, err)
		}
		told()
	})
	for i, n := range l.told {
		if n != 1 {
			l.t.Errorf("the outcome of lease %d was told %d times", i, n)
		}
	}
	return renewed, refused, unanswered
}

// A round of more leases than fit into the pipelines of its server uses its renewals
// again.
func TestARoundTellsTheOutcomeOfEachLeaseOnce(t *testing.T) {
	t.Parallel()
	s := common(t)
	window := s.renewals.most * maxBatch
	for _, n := range []int{1, 2, maxBatch - 1, maxBatch, maxBatch + 1, window, window + 1, 3*window + 7} {
		t.Run(fmt.Sprint(n, " leases"), func(t *testing.T) {
			if b := s.newRound(&s.renewals, n); len(b.all) != min(n, window) {
				t.Errorf("the round has %d renewals under way, want %d", len(b.all), min(n, window))
			}
			l := newLeases(t, s, n)
			for range 3 {
				renewed, refused, _ := l.renew(t.Context(), func() {})
				if want := (n + 2) / 3; renewed != want || refused != n-want {
					t.Errorf("%d renewed and %d refused of %d, want %d and %d", renewed, refused, n, want, n-want)
				}
			}
		})
	}
}

// A round that is given up reports the outcome of every lease all the same: of leases
// that were not sent, of leases on their way, and of leases with an answer at that
// moment.
func TestARoundThatIsGivenUpTellsTheOutcomeOfEachLeaseOnce(t *testing.T) {
	t.Parallel()
	s := common(t)
	window := s.renewals.most * maxBatch
	n := 3*window + 7
	l := newLeases(t, s, n)
	for _, after := range []int{1, 100, maxBatch, window, 2*window + 50, n - 100, n} {
		ctx, cancel := context.WithCancel(t.Context())
		told := 0
		renewed, refused, unanswered := l.renew(ctx, func() {
			if told++; told == after {
				cancel()
			}
		})
		cancel()
		if renewed+refused < after || renewed+refused+unanswered != n {
			t.Errorf("given up after %d of %d: %d renewed, %d refused, %d without an answer", after, n, renewed, refused, unanswered)
		}
		if after < n-2*window && unanswered == 0 {
			t.Errorf("given up after %d of %d, it had all its answers", after, n)
		}
	}
	if _, _, unanswered := l.renew(t.Context(), func() {}); unanswered != 0 {
		t.Errorf("the next round: %d without an answer", unanswered)
	}
}

// sink is a connection that loses a message at some time, and everything after that.
type sink struct {
	net.Conn
	taken *atomic.Bool // a connection has been chosen
	least int          // bytes that a write has which chooses one
	loses bool
}

func (c *sink) Write(b []byte) (int, error) {
	if !c.loses && len(b) >= c.least && c.taken.CompareAndSwap(false, true) {
		c.loses = true
	}
	if c.loses {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// A connection that hangs holds up the renewals that are on it, and no other.
func TestAConnectionThatHangsHoldsUpNoOtherRenewal(t *testing.T) {
	t.Parallel()
	const large = 2000 // bytes: no acquire has so many, a pipeline of renewals has more
	var taken atomic.Bool
	s := common(t, func(o *redis.Options) {
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			cn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			return &sink{Conn: cn, taken: &taken, least: large}, err
		}
	})
	taken.Store(true)
	n := 3*s.renewals.most*maxBatch + 7
	l := newLeases(t, s, n)
	l.renew(t.Context(), func() {}) // the connections are there
	taken.Store(false)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	told := 0
	renewed, refused, unanswered := l.renew(ctx, func() {
		if told++; told == n-maxBatch {
			cancel()
		}
	})
	if !taken.Load() || unanswered == 0 || unanswered > maxBatch || renewed+refused < n-maxBatch {
		t.Errorf("%d renewed and %d refused of %d, %d without an answer, want at most %d", renewed, refused, n, unanswered, maxBatch)
	}
}

// The fence of an offer, which says nothing of a lease, was forgotten after two minutes, also where
// the lease is longer than that.
func TestTheFenceOfAnOfferIsKeptForTheLeaseAndAMinute(t *testing.T) {
	t.Parallel()
	s := common(t)
	rdb, lock, owner := s.requests.single, s.names.lock("k"), "me:1000000"
	rdb.HSet(t.Context(), lock, "r", 60_000, "q", "me~A", "offer", owner)
	rdb.PExpire(t.Context(), lock, time.Minute)
	rdb.Set(t.Context(), lock+fenceSuffix, "1000000", 2*time.Minute)
	s.Renew(t.Context(), []driver.Renewal{{Key: "k", Owner: owner, TTL: time.Hour}}, func(_ int, _ bool, err error) {
		if err != nil {
			t.Errorf("the renewal that begins the lease: %v", err)
		}
	})
	if token := rdb.HGet(t.Context(), lock, owner).Val(); token != "1000000" {
		t.Errorf("the token of the holder is %q; want the token of the offer", token)
	}
	if left := rdb.PTTL(t.Context(), lock+fenceSuffix).Val(); left > time.Hour+time.Minute || left < time.Hour+30*time.Second {
		t.Errorf("the fence is kept for %v; want the lease of an hour and a minute", left)
	}
}
