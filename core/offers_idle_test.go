package core_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
)

// idleWorld has callers of several processes that come one after the other, wait in different ways
// and leave, while replies are late and some requests are not carried out.
type idleWorld struct {
	t    *testing.T
	seed uint64

	mu      sync.Mutex
	rand    *rand.Rand
	waiting int
	holding int
	since   time.Time // from when on no caller held the lock though one waited
}

func (w *idleWorld) n(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rand.IntN(n)
}

func (w *idleWorld) ms(n int) time.Duration { return time.Duration(w.n(n*1000)) * time.Microsecond }

// count notes that so many callers more wait and hold the lock.
func (w *idleWorld) count(waiting, holding int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	idle := w.waiting > 0 && w.holding == 0
	w.waiting += waiting
	w.holding += holding
	const most = 400 * time.Millisecond // some replies, and the patience of a few processes
	if took := time.Since(w.since); idle && took > most {
		w.t.Errorf("seed %d: the lock was free for %v while a caller waited; want at most %v", w.seed, took, most)
	}
	if !idle {
		w.since = time.Now()
	}
}

// call is one caller.
func (w *idleWorld) call(l *core.Locker) {
	opts := [][]core.Option{nil, nil, {core.Newest()}, {core.Newest()}, {core.WholeLease()}, {core.TTL(time.Minute)}}[w.n(6)]
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	if w.n(4) == 0 {
		time.AfterFunc(w.ms(200), leave)
	}
	w.count(1, 0)
	lease, err := l.Lock(ctx, "k", opts...)
	if err != nil {
		w.count(-1, 0)
		return
	}
	w.count(-1, 1)
	select {
	case <-lease.Context().Done():
	case <-time.After(w.ms(20)):
	}
	w.count(0, -1)
	_ = lease.Release(context.Background())
}

// No caller waits for long while the lock is free, whoever leaves.
func TestNoCallerWaitsForALockThatIsFree(t *testing.T) {
	for seed := range uint64(offerWorlds) {
		synctest.Test(t, func(t *testing.T) {
			w := &idleWorld{t: t, seed: seed, rand: rand.New(rand.NewPCG(seed, 3))}
			store := memstore.New()
			var lockers []*core.Locker
			for range 3 {
				l := newLocker(t, store)
				core.Invalid(l, func(err error) { t.Errorf("seed %d: %v", seed, err) })
				lockers = append(lockers, l)
			}
			store.Intercept(func(r memstore.Request) memstore.Fault {
				f := memstore.Fault{Before: w.ms(1)}
				if w.n(3) == 0 {
					f.After = w.ms(20)
				}
				if r.Op == memstore.Acquire && w.n(20) == 0 {
					f.Before, f.Err = f.Before+w.ms(5), driver.ErrNotReady
				}
				return f
			})
			var all sync.WaitGroup
			for range 150 {
				l := lockers[w.n(3)]
				all.Go(func() { w.call(l) })
				time.Sleep(2*time.Millisecond + w.ms(10))
				if w.n(30) == 0 {
					time.Sleep(driver.OfferLasts / 2) // waiting callers have to ask
				}
			}
			all.Wait()
		})
	}
}

// refusing is a view of the store that answers one try with an offer to the caller's own process.
type refusing struct {
	*offering
	token int64 // of the offer; 0: answer as the store does
}

func (s *refusing) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	if token := s.token; token != 0 {
		s.token = 0
		id, _, _ := strings.Cut(req.Owner, ":")
		return driver.Reply{
			Holder: fmt.Sprintf("%s:%d", id, token), Token: token, TTL: driver.OfferLasts, Listed: true, Sent: time.Now(),
		}, nil
	}
	return s.offering.Acquire(ctx, req)
}

// The answer to a try comes late, and names an offer that this process has passed on meanwhile. All its
// callers slept for the time of that offer.
func TestARefusalForAnOfferThatWasPassedOnSetsNoTimeOfTheNextTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var late *refusing
		p := newPairOn(t, func(seen *offering) core.Store {
			late = &refusing{offering: seen}
			return late
		})
		lease := held(t, p.holder, t.Context(), "k")
		got, _ := p.waits()
		late.token = lease.Token()
		p.seen.lost, p.seen.deaf = true, true
		p.seen.turn() // it asks, and is refused
		synctest.Wait()
		begin := time.Now()
		p.store.Expire("k")
		if next := <-got; next == nil || time.Since(begin) > 100*time.Millisecond {
			t.Errorf("the caller gets the free lock after %v; want a short time", time.Since(begin))
		} else {
			release(t, next)
		}
		wantErr(t, lease.Release(t.Context()), core.ErrLost)
	})
}
