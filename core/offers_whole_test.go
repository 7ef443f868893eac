package core_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
)

// whole fails the test unless at least two thirds of the default lease are left.
func whole(t *testing.T, lease *core.Lease) {
	t.Helper()
	if left := time.Until(lease.Deadline()); left < 20*time.Second-time.Millisecond {
		t.Errorf("%v of the lease are left; want two thirds of 30 s at least", left)
	}
}

// unrenewed is a store in memory for which the connections of the watchdog lead nowhere.
type unrenewed struct{ *offering }

func (s unrenewed) Renew(ctx context.Context, batch []driver.Renewal, done func(int, bool, error)) {
	if batch[0].Asked {
		s.Store.Renew(ctx, batch, done)
		return
	}
	<-ctx.Done()
	for i := range batch {
		done(i, false, driver.ErrUnavailable)
	}
}

// The connections for renewals can have died in silence, or have to be made first.
func TestAnOfferIsConfirmedByTheConnectionThatAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPairOn(t, func(seen *offering) core.Store { return unrenewed{seen} })
		lease := p.handOver(func() {})
		time.Sleep(20 * time.Millisecond)
		whole(t, lease)
		wantErr(t, lease.Err(), nil)
		_ = lease.Release(t.Context())
	})
}

// A renewal that gets no answer is sent again while there is time.
func TestTheConfirmationOfAnOfferIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.store.Intercept(atFirst(memstore.Renew, memstore.Delay(time.Minute)))
		lease := p.handOver(func() {})
		time.Sleep(driver.OfferLasts)
		wantErr(t, lease.Err(), nil)
		_ = lease.Release(t.Context())
	})
}

// A server that stands still, or is replaced, within a second loses no lease.
func TestAServerThatStandsStillForASecondEndsNoOffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		var again time.Time
		p.store.Intercept(func(r memstore.Request) memstore.Fault {
			if r.Op == memstore.Renew {
				return memstore.Fault{Before: time.Until(again)}
			}
			return memstore.Fault{}
		})
		lease := p.handOver(func() {
			time.Sleep(driver.OfferLasts/2 - 100*time.Millisecond) // the offer counts from here
			again = time.Now().Add(1200 * time.Millisecond)
		})
		time.Sleep(2 * time.Second)
		wantErr(t, lease.Err(), nil)
		whole(t, lease)
		_ = lease.Release(t.Context())
	})
}

// A caller that needs a whole lease has it from the beginning, however it gets the lock.
func TestACallerThatWantsAWholeLeaseBeginsWithOne(t *testing.T) {
	run := func(name string, f func(t *testing.T, p *pair)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { f(t, newPair(t)) })
		})
	}
	run("by a hand-over between processes", func(t *testing.T, p *pair) {
		lease := p.handOver(func() {}, core.WholeLease())
		whole(t, lease)
		_ = lease.Release(t.Context())
	})
	run("by a hand-over within an offer", func(t *testing.T, p *pair) {
		lease0 := held(t, p.holder, t.Context(), "k")
		first, _ := p.waits()
		second, _ := p.waits(core.WholeLease())
		_ = lease0.Release(t.Context())
		_ = (<-first).Release(t.Context())
		lease := <-second
		whole(t, lease)
		_ = lease.Release(t.Context())
	})
	run("by a grant of which the reply comes late", func(t *testing.T, p *pair) {
		p.store.Intercept(func(r memstore.Request) memstore.Fault {
			if r.Op == memstore.Acquire {
				return memstore.Fault{After: 15 * time.Second}
			}
			return memstore.Delay(100 * time.Millisecond)
		})
		got, _ := p.waits(core.WholeLease())
		lease := <-got
		whole(t, lease)
		_ = lease.Release(t.Context())
	})
	run("to lead", func(t *testing.T, p *pair) {
		lease0 := held(t, p.holder, t.Context(), "k")
		led := make(chan error, 1)
		go func() {
			led <- core.Lead(t.Context(), p.other, "k", func(ctx context.Context) error {
				whole(t, core.LeaseFromContext(ctx))
				return errors.New("led")
			})
		}()
		synctest.Wait()
		_ = lease0.Release(t.Context())
		if err := <-led; err == nil || err.Error() != "led" {
			t.Error(err)
		}
	})
}

// soon fails the test unless the caller gets the lock within a time.
func (p *pair) soon(got chan *core.Lease, since time.Time, most time.Duration) {
	p.t.Helper()
	lease := <-got
	if took := time.Since(since); lease == nil || took > most {
		p.t.Fatalf("the caller that waits gets the lock after %v; want %v at most", took, most)
	}
	_ = lease.Release(p.t.Context())
}

// The caller for which a process asks for its offer leaves, and its request is not carried out.
func TestAnOfferOutlastsTheCallerThatAsksForIt(t *testing.T) {
	for name, opts := range map[string][]core.Option{
		"the next caller of the process is like it": nil, "is the newest": {core.Newest()},
		"shares the lock": {core.Shared()}, "wants another lease": {core.TTL(time.Minute)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t)
				lease := held(t, p.holder, t.Context(), "k")
				_, leave := p.waits()
				time.Sleep(driver.OfferLasts/2 + 5*time.Millisecond) // it has to ask
				first := true
				p.store.Intercept(func(r memstore.Request) memstore.Fault {
					if r.Op == memstore.Acquire && first {
						first = false
						return memstore.Fault{Before: 5 * time.Millisecond, Err: driver.ErrNotReady}
					}
					return memstore.Fault{}
				})
				released := time.Now()
				_ = lease.Release(t.Context())
				synctest.Wait()
				if first {
					t.Fatal("the process does not ask for its offer")
				}
				next, _ := p.waits(opts...)
				leave()
				p.soon(next, released, 100*time.Millisecond)
			})
		})
	}
}

// The announcement of an earlier release, which offered the lock to another process, comes after
// the offer. The process has to ask for its offer, and the store is not ready.
func TestAnEarlierAnnouncementDoesNotPutOffTheRequestForAnOffer(t *testing.T) {
	for name, announced := range map[string]time.Duration{
		"before the reply": 2 * time.Millisecond, "after the reply": 7 * time.Millisecond, "before the second reply": 17 * time.Millisecond,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t)
				lease := held(t, p.holder, t.Context(), "k")
				got, _ := p.waits()
				time.Sleep(driver.OfferLasts/2 + 5*time.Millisecond) // it has to ask
				requests := 0
				p.store.Intercept(func(r memstore.Request) memstore.Fault {
					if r.Op == memstore.Acquire {
						if requests++; requests <= 2 {
							return memstore.Fault{Before: 5 * time.Millisecond, Err: driver.ErrNotReady}
						}
					}
					return memstore.Fault{}
				})
				released := time.Now()
				_ = lease.Release(t.Context())
				time.Sleep(announced)
				p.seen.hear(driver.Call{What: driver.Turn, Key: "k", In: driver.OfferLasts})
				p.soon(got, released, 100*time.Millisecond)
			})
		})
	}
}

// The only caller leaves while the request for the offer is on its way, which is not carried out.
func TestAnOfferGoesToTheNextProcessWhenItsOnlyCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		lease := held(t, p.holder, t.Context(), "k")
		_, leave := p.waits()
		third := newLocker(t, p.store)
		next := make(chan *core.Lease, 1)
		go func() {
			lease, err := third.Lock(t.Context(), "k")
			if err != nil {
				t.Error(err)
			}
			next <- lease
		}()
		time.Sleep(driver.OfferLasts/2 + 5*time.Millisecond)
		p.store.Intercept(during(memstore.Acquire, memstore.Fault{Before: 5 * time.Millisecond, Err: driver.ErrNotReady}))
		released := time.Now()
		_ = lease.Release(t.Context())
		synctest.Wait()
		leave()
		time.Sleep(6 * time.Millisecond)
		p.store.Intercept(nil)
		p.soon(next, released, 100*time.Millisecond)
	})
}

// The only caller leaves, and the release that passes the offer on fails.
func TestAnOfferIsPassedOnAgainWhenTheStoreIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		lease := held(t, p.holder, t.Context(), "k")
		_, leave := p.waits()
		third := comes(t, t.Context(), newLocker(t, p.store))
		failed := false
		p.store.Intercept(func(r memstore.Request) memstore.Fault {
			if r.Op == memstore.Release && strings.HasPrefix(r.Owner, core.ID(p.other)) && !failed {
				failed = true
				return memstore.Fault{Err: driver.ErrNotReady}
			}
			if r.Op == memstore.Decline {
				return memstore.Delay(time.Second) // the offer comes before
			}
			return memstore.Fault{}
		})
		leave()
		synctest.Wait()
		released := time.Now()
		_ = lease.Release(t.Context())
		<-third.done
		if took := time.Since(released); !failed || took > time.Second {
			t.Fatalf("the next process gets the lock after %v, and a release failed: %v; want 1s at most, and true", took, failed)
		}
		_ = third.lease.Release(t.Context())
	})
}

// A caller that does not wait asks for no offer. The next caller has the turn of the process.
func TestACallerThatDoesNotWaitLeavesTheOfferToTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		lease := held(t, p.holder, t.Context(), "k")
		_, leave := p.waits()
		time.Sleep(driver.OfferLasts/2 + 5*time.Millisecond)
		p.seen.lost, p.seen.deaf = true, true
		released := time.Now()
		_ = lease.Release(t.Context())
		leave()
		synctest.Wait()
		third := comes(t, t.Context(), newLocker(t, p.store))
		p.store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Delay(time.Millisecond) })
		go func() { _, _ = p.other.TryLock(t.Context(), "k") }()
		synctest.Wait()
		next, _ := p.waits()
		p.seen.hear(p.seen.last(t))
		time.Sleep(100 * time.Millisecond)
		select {
		case <-third.done:
			t.Fatal("another process has the turn; want the caller that waits in the process with the offer to have it")
		case lease = <-next:
		default:
			t.Fatalf("no caller has the lock %v after the release", time.Since(released))
		}
		_ = lease.Release(t.Context())
		time.Sleep(time.Second)
		release(t, third.holds())
	})
}
