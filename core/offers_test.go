package core_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
)

// offering is a store in memory as one process sees it. A test can hold up, repeat and forge
// its offers.
type offering struct {
	*memstore.Store
	lost     bool // offers do not arrive
	deaf     bool // other calls do not arrive
	hear     func(driver.Call)
	offers   []driver.Call
	asked    []driver.AcquireRequest
	released []driver.ReleaseRequest
	mu       sync.Mutex
}

func (s *offering) Calls(id string, hear func(driver.Call)) (stop func()) {
	s.hear = hear
	return s.Store.Calls(id, func(c driver.Call) {
		offered := c.What == driver.Offered
		if offered {
			s.mu.Lock()
			s.offers = append(s.offers, c)
			s.mu.Unlock()
		}
		if offered && !s.lost || !offered && !s.deaf {
			hear(c)
		}
	})
}

// turn has the process ask.
func (s *offering) turn() { s.hear(driver.Call{What: driver.Turn, Key: "k"}) }

func (s *offering) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	s.mu.Lock()
	s.asked = append(s.asked, req)
	s.mu.Unlock()
	return s.Store.Acquire(ctx, req)
}

func (s *offering) Release(ctx context.Context, req driver.ReleaseRequest) (driver.Waiting, error) {
	s.mu.Lock()
	s.released = append(s.released, req)
	s.mu.Unlock()
	return s.Store.Release(ctx, req)
}

// last is the offer that was made last.
func (s *offering) last(t *testing.T) driver.Call {
	t.Helper()
	if len(s.offers) == 0 {
		t.Fatal("nothing was offered")
	}
	return s.offers[len(s.offers)-1]
}

// pair is a process that holds the lock, and another process, which takes offers.
type pair struct {
	t      *testing.T
	store  *memstore.Store
	holder *core.Locker
	seen   *offering
	other  *core.Locker
}

func newPair(t *testing.T) *pair {
	return newPairOn(t, func(seen *offering) core.Store { return seen })
}

// newPairOn makes a pair, and gives the other process another view of the store.
func newPairOn(t *testing.T, see func(seen *offering) core.Store) *pair {
	store := memstore.New()
	p := &pair{t: t, store: store, holder: newLocker(t, store), seen: &offering{Store: store}}
	p.other = newLocker(t, see(p.seen))
	// The first caller that finds a lock held has the process told of offers.
	p.handOver(nil)
	return p
}

// waits has a caller of the other process wait, from now on.
func (p *pair) waits(opts ...core.Option) (got chan *core.Lease, leave func()) {
	p.t.Helper()
	ctx, leave := context.WithCancel(p.t.Context())
	got = make(chan *core.Lease, 1)
	go func() {
		defer close(got)
		if lease, err := p.other.Lock(ctx, "k", opts...); err == nil {
			got <- lease
		}
	}()
	synctest.Wait()
	return got, leave
}

// handOver has the other process wait for the lock, does something, and releases the lock. It
// returns the lease of the other process, which is given back unless meanwhile is nil.
func (p *pair) handOver(meanwhile func(), opts ...core.Option) *core.Lease {
	p.t.Helper()
	lease := held(p.t, p.holder, p.t.Context(), "k")
	got, _ := p.waits(opts...)
	if meanwhile != nil {
		meanwhile()
	}
	_ = lease.Release(p.t.Context())
	next := <-got
	if next == nil {
		p.t.Fatal("the other process does not get the lock")
	}
	if meanwhile == nil {
		_ = next.Release(p.t.Context())
	}
	return next
}

// asks counts the requests for the lock of the other process while something happens.
func (p *pair) asks(do func()) []driver.AcquireRequest {
	n := len(p.seen.asked)
	do()
	return p.seen.asked[n:]
}

func TestAMessageOfTheReleaseIsTheGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		var lease *core.Lease
		if asked := p.asks(func() { lease = p.handOver(func() {}) }); len(asked) != 1 {
			t.Errorf("%d requests; want one, which is refused", len(asked))
		}
		o := p.seen.last(t)
		if lease.Token() != o.Token {
			t.Errorf("token %d; the offer was %d", lease.Token(), o.Token)
		}
		left := time.Until(lease.Deadline())
		if left > driver.OfferLasts-5*time.Millisecond || left < driver.OfferLasts/2 {
			t.Errorf("%v are left of the offer", left)
		}
		if _, err := p.holder.Lock(t.Context(), "k", core.Wait(0)); !errors.Is(err, core.ErrHeld) {
			t.Errorf("another process: %v", err)
		}
		time.Sleep(time.Second) // it is renewed
		if owner, token, ok := p.store.Holder("k"); lease.Err() != nil || !ok || token != o.Token || time.Until(lease.Deadline()) < 5*time.Second {
			t.Errorf("after the renewal the lease is %v until %v, the holder %q", lease.Err(), lease.Deadline(), owner)
		}
		wantErr(t, lease.Release(t.Context()), nil)
		if renewed := p.store.Requests(memstore.Renew); renewed != 1 {
			t.Errorf("%d renewals", renewed)
		}
	})
}

// If the anchor is older than half an offer, or missing, the process sends a request in
// place of the offer.
func TestAnOfferIsAskedForByItsTokenWhereItCannotBeTaken(t *testing.T) {
	for name, opts := range map[string][]core.Option{
		"the last answer is too old": nil, "a fixed lease": {core.TTL(time.Minute)}, "an attentive caller": {core.Attentive()},
		"a lease shorter than an offer": {core.Watchdog(300 * time.Millisecond)}, "a caller that wants a whole lease": {core.WholeLease()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t)
				var lease *core.Lease
				lease0 := held(t, p.holder, t.Context(), "k")
				plain, leave := p.waits() // it is listed as a process that takes offers
				asked := p.asks(func() {
					var got chan *core.Lease
					if opts == nil {
						time.Sleep(driver.OfferLasts/2 + 5*time.Millisecond)
						got = plain
					} else {
						got, _ = p.waits(opts...)
						leave()
						synctest.Wait()
					}
					_ = lease0.Release(t.Context())
					lease = <-got
				})
				if lease == nil {
					t.Fatal("no lease")
				}
				defer func() { _ = lease.Release(t.Context()) }()
				if n := len(asked); n != 1 || asked[0].Offer != p.seen.last(t).Token || lease.Token() <= asked[0].Offer {
					t.Errorf("asked with %+v, token %d; the offer is %+v", asked, lease.Token(), p.seen.offers)
				}
			})
		})
	}
}

// An offer of which no caller is left goes to the next process.
func TestAnOfferThatNoCallerWantsIsPassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		lease := held(t, p.holder, t.Context(), "k")
		_, leave := p.waits()
		next := make(chan time.Time, 1)
		third := newLocker(t, p.store)
		go func() {
			if l, err := third.Lock(t.Context(), "k"); err == nil {
				next <- time.Now()
				_ = l.Release(t.Context())
			}
		}()
		synctest.Wait()
		p.seen.lost, p.seen.deaf = true, true
		begin := time.Now()
		_ = lease.Release(t.Context())
		leave()
		synctest.Wait()
		p.seen.hear(p.seen.last(t))
		if took := (<-next).Sub(begin); took > time.Millisecond {
			t.Errorf("the next process gets the lock after %v", took)
		}
	})
}

// The store does not give the lock to the others while it is offered, and a process that does
// not take the offer costs them the time of the offer.
func TestAnOfferThatIsLostCostsItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		lease := held(t, p.holder, t.Context(), "k")
		_, leave := p.waits()
		p.seen.lost, p.seen.deaf = true, true // the process is stopped
		third := newLocker(t, p.store)
		begin := time.Now()
		_ = lease.Release(t.Context())
		next, err := third.Lock(t.Context(), "k")
		if took := time.Since(begin); err != nil || took < driver.OfferLasts || took > driver.OfferLasts+10*time.Millisecond {
			t.Errorf("the next process gets the lock after %v, %v", took, err)
		}
		leave()
		_ = next.Release(t.Context())
	})
}

// A request that was sent after the release is no beginning for the time of the offer.
func TestTheTimeOfAnOfferBeginsBeforeTheRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		lease := held(t, p.holder, t.Context(), "k")
		got, _ := p.waits()
		time.Sleep(20 * time.Millisecond)
		p.seen.lost, p.seen.deaf = true, true
		released := time.Now()
		_ = lease.Release(t.Context())
		time.Sleep(50 * time.Millisecond)
		p.store.Intercept(during(memstore.Acquire, memstore.Delay(10*time.Millisecond)))
		p.seen.turn() // it asks
		synctest.Wait()
		p.seen.hear(p.seen.last(t))
		next := <-got
		if most := released.Add(driver.OfferLasts); next == nil || len(got) != 0 || !next.Deadline().Before(most) {
			t.Errorf("the lease ends at %v; the store keeps the lock until %v", next.Deadline(), most)
		}
		_ = next.Release(t.Context())
	})
}

// A message that comes late or again gives no lock.
func TestAnOfferIsTakenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		lease := p.handOver(func() {})
		o := p.seen.last(t)
		p.seen.hear(o)
		synctest.Wait()
		wantErr(t, lease.Err(), nil)
		_ = lease.Release(t.Context())
		p.seen.hear(o)
		synctest.Wait()
		again := held(t, p.holder, t.Context(), "k")
		got, _ := p.waits()
		p.seen.hear(o)
		p.seen.hear(driver.Call{What: driver.Offered, Key: "k", Token: o.Token - 1})
		synctest.Wait()
		if len(got) != 0 || again.Err() != nil {
			t.Error("an old offer gives the lock to a caller")
		}
		if n := len(p.seen.released); n > 4 {
			t.Errorf("%d releases", n)
		}
		_ = again.Release(t.Context())
		_ = (<-got).Release(t.Context())
	})
}

// While a request is on its way its answer decides.
func TestAnOfferWaitsForTheAnswerThatIsOnItsWay(t *testing.T) {
	for name, late := range map[string]bool{"the request was carried out before the release": false, "and after it": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t)
				lease := held(t, p.holder, t.Context(), "k")
				fault := memstore.Fault{After: 10 * time.Millisecond}
				if late {
					fault = memstore.Fault{Before: 10 * time.Millisecond}
				}
				p.store.Intercept(func(r memstore.Request) memstore.Fault {
					if r.Op == memstore.Acquire && len(p.seen.asked) < 4 {
						return fault
					}
					return memstore.Fault{}
				})
				id, _, _ := strings.Cut(p.seen.asked[0].Owner, ":")
				p.seen.asked = nil
				var waiting chan *core.Lease
				if late {
					// It is in the list already, by another request.
					_, err := p.store.Acquire(t.Context(), driver.AcquireRequest{
						Key: "k", Owner: id + ":7", TTL: time.Minute, Waiter: driver.Waiter(id + "~A"),
					})
					wantErr(t, err, nil)
				}
				waiting, _ = p.waits()
				time.Sleep(time.Millisecond)
				_ = lease.Release(t.Context())
				next := <-waiting
				if next == nil {
					t.Fatal("no lease")
				}
				want := 1
				if late {
					want = 2
				}
				if len(p.seen.asked) != want || !late && next.Token() != p.seen.last(t).Token || late && p.seen.asked[1].Offer != p.seen.last(t).Token {
					t.Errorf("asked with %+v, offered %+v, token %d", p.seen.asked, p.seen.offers, next.Token())
				}
				_ = next.Release(t.Context())
			})
		})
	}
}

// An answer can come before the message of an offer that it names. Then it says the same, and the
// message nothing more.
func TestAnAnswerThatNamesAnOfferIsTheOffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		lease := held(t, p.holder, t.Context(), "k")
		got, _ := p.waits()
		p.seen.lost = true
		p.store.Intercept(during(memstore.Acquire, memstore.Fault{Before: 10 * time.Millisecond}))
		asked := p.asks(func() {
			p.seen.turn() // it asks, and the release is carried out first
			_ = lease.Release(t.Context())
			begin := time.Now()
			next := <-got
			if took, want := time.Since(begin), p.seen.last(t).Token; took > 10*time.Millisecond || next.Token() != want {
				t.Errorf("%v later it holds the lock by the token %d; want %d", took, next.Token(), want)
			}
			p.seen.hear(p.seen.last(t))
			if err := next.Err(); err != nil {
				t.Error(err)
			}
			_ = next.Release(t.Context())
		})
		if len(asked) != 1 {
			t.Errorf("it asked with %+v", asked)
		}
	})
}

// An offer that is not confirmed by its end is lost, as any lease.
func TestAnOfferThatIsNotRenewedIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.store.Intercept(during(memstore.Renew, memstore.Unreachable))
		lease := p.handOver(func() {})
		ends := lease.Deadline()
		<-lease.Context().Done()
		if now := time.Now(); !errors.Is(context.Cause(lease.Context()), core.ErrLost) || now.After(ends.Add(time.Millisecond)) {
			t.Errorf("%v, %v after its end", context.Cause(lease.Context()), now.Sub(ends))
		}
		_ = lease.Release(t.Context())
	})
}

// A machine that sleeps for longer than the drift of an offer is noticed, before the offer is taken
// and after.
func TestAnOfferDoesNotOutlastASleepOfTheMachine(t *testing.T) {
	for name, before := range map[string]bool{"before the release": true, "under the offer": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t)
				var slept atomic.Int64
				core.SetWall(p.other, func() time.Time { return time.Now().Add(time.Duration(slept.Load())) })
				sleep := func() { slept.Store(int64(driver.OfferLasts / 50)) }
				var lease *core.Lease
				asked := p.asks(func() {
					lease = p.handOver(func() {
						if before {
							sleep()
						}
					})
				})
				if want := 1; before && len(asked) != want+1 || !before && len(asked) != want {
					t.Errorf("%d requests", len(asked))
				}
				if !before {
					wantErr(t, lease.Err(), nil)
					sleep()
					wantErr(t, lease.Err(), core.ErrLost)
				}
				_ = lease.Release(t.Context())
			})
		})
	}
}

// unruly is a store in memory as a process sees it. Requests, replies and offers arrive late,
// repeated, in another order, or not at all.
type unruly struct {
	*memstore.Store
	rand func(n int) int
}

func (s unruly) delay() time.Duration {
	switch n := s.rand(100); {
	case n < 60:
		return time.Duration(s.rand(300)) * time.Microsecond
	case n < 97:
		return time.Duration(s.rand(5)) * time.Millisecond
	default:
		return time.Duration(s.rand(700)) * time.Millisecond
	}
}

func (s unruly) fault() memstore.Fault {
	f := memstore.Fault{Before: s.delay(), After: s.delay()}
	switch s.rand(60) {
	case 0:
		f.Err, f.Executed = driver.ErrUnavailable, true
	case 1:
		f.Err, f.Ambiguous = driver.ErrUnavailable, true
	}
	return f
}

func (s unruly) Calls(id string, hear func(driver.Call)) (stop func()) {
	return s.Store.Calls(id, func(c driver.Call) {
		n := 1
		switch c.What {
		case driver.Unsure:
			hear(c)
			return
		case driver.Offered:
			switch s.rand(20) {
			case 0:
				n = 0
			case 1:
				n = 3
			}
		case driver.Turn, driver.Wanted, driver.Displaced:
		}
		for range n {
			time.AfterFunc(s.delay(), func() { hear(c) })
		}
	})
}

// Acquire sends some requests twice; the first copy arrives late.
func (s unruly) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	if s.rand(30) != 0 {
		return s.Store.Acquire(ctx, req)
	}
	sent, late := time.Now(), req
	late.Late = func(driver.Reply, error) {}
	time.AfterFunc(s.delay(), func() { _, _ = s.Store.Acquire(context.Background(), late) })
	rep, err := s.Store.Acquire(ctx, req)
	rep.Sent, rep.Ambiguous = sent, true
	return rep, err
}

// Messages come late, again, in another order or not at all, and at most one caller considers its
// lease valid.
func TestOffersLeaveOneHolder(t *testing.T) {
	for seed := range uint64(offerWorlds) {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			source := rand.New(rand.NewPCG(seed, 7))
			random := func(n int) int {
				mu.Lock()
				defer mu.Unlock()
				return source.IntN(n)
			}
			store := memstore.New()
			faults := unruly{store, random}
			store.Intercept(func(memstore.Request) memstore.Fault { return faults.fault() })
			ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
			defer stop()
			var holders []*core.Lease
			var last int64
			sections := 0
			enter := func(lease *core.Lease) {
				mu.Lock()
				defer mu.Unlock()
				if now := time.Now(); lease.Err() != nil || !now.Before(lease.Deadline()) {
					return
				}
				for _, other := range holders {
					if now := time.Now(); other.Err() == nil && now.Before(other.Deadline()) {
						t.Errorf("seed %d: %d and %d are valid at the same time", seed, other.Token(), lease.Token())
					}
				}
				if lease.Token() <= last {
					t.Errorf("seed %d: token %d after %d", seed, lease.Token(), last)
				}
				last = lease.Token()
				sections++
				holders = append(holders, lease)
			}
			leave := func(lease *core.Lease) {
				mu.Lock()
				defer mu.Unlock()
				holders = slices.DeleteFunc(holders, func(l *core.Lease) bool { return l == lease })
			}
			var all sync.WaitGroup
			for i := range 4 {
				locker := newLocker(t, faults, core.Watchdog(2*driver.OfferLasts))
				for range 1 + i%2*2 {
					all.Go(func() {
						for ctx.Err() == nil {
							wait, cancel := context.WithCancel(ctx)
							if random(10) == 0 {
								time.AfterFunc(time.Duration(random(30))*time.Millisecond, cancel)
							}
							lease, err := locker.Lock(wait, "k")
							if err != nil {
								cancel()
								time.Sleep(time.Duration(random(5)) * time.Millisecond)
								continue
							}
							enter(lease)
							switch random(10) {
							case 0:
								time.Sleep(time.Duration(random(900)) * time.Millisecond)
							case 1, 2, 3:
								time.Sleep(time.Duration(random(5)) * time.Millisecond)
							}
							leave(lease)
							_ = lease.Release(context.Background())
							cancel()
						}
					})
				}
			}
			all.Wait()
			if sections < 20 {
				t.Errorf("seed %d: %d sections", seed, sections)
			}
			time.Sleep(time.Minute) // late messages arrive
		})
	}
}
