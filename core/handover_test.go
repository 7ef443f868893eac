package core_test

import (
	"context"
	"errors"
	"fmt"
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

// watched is a locker with the rules of its locks checked after each event.
func watched(t *testing.T, store core.Store, opts ...core.LockerOption) *core.Locker {
	t.Helper()
	l := newLocker(t, store, opts...)
	core.Invalid(l, func(err error) { t.Error(err) })
	return l
}

// handOver hands a lease over or fails the test.
func handOver(t *testing.T, lease *core.Lease, keep time.Duration) core.Ticket {
	t.Helper()
	ticket, err := lease.HandOver(t.Context(), keep)
	if err != nil {
		t.Fatalf("HandOver(%q): %v", lease.Key(), err)
	}
	return ticket
}

// takeOver takes a lock over or fails the test.
func takeOver(t *testing.T, l *core.Locker, ticket core.Ticket, opts ...core.TakeOverOption) *core.Lease {
	t.Helper()
	lease, err := l.TakeOver(t.Context(), ticket, opts...)
	if err != nil {
		t.Fatalf("TakeOver(%q): %v", ticket.Key(), err)
	}
	return lease
}

// moves answers all requests that move a lock with a fault.
func moves(fault memstore.Fault) func(memstore.Request) memstore.Fault {
	return func(r memstore.Request) memstore.Fault {
		if r.From != "" {
			return fault
		}
		return memstore.Fault{}
	}
}

func TestAWorkerGoesOnWithTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		web, worker := watched(t, s), watched(t, s)
		lease := held(t, web, t.Context(), "k")
		ticket := handOver(t, lease, time.Minute)
		wantErr(t, lease.Err(), core.ErrHandedOver)
		wantErr(t, lease.Check(t.Context()), core.ErrHandedOver)
		if err := lease.Context().Err(); err != nil {
			t.Errorf("the context of a handler that has still to answer ended: %v", context.Cause(lease.Context()))
		}
		for _, l := range []*core.Locker{web, worker} {
			_, err := l.TryLock(t.Context(), "k")
			wantErr(t, err, core.ErrHeld)
		}
		time.Sleep(50 * time.Second)
		next := takeOver(t, worker, ticket, core.Watchdog(3*time.Second))
		if next.Token() <= lease.Token() {
			t.Errorf("the token is %d after %d", next.Token(), lease.Token())
		}
		release(t, lease)
		if cause := context.Cause(lease.Context()); !errors.Is(cause, core.ErrHandedOver) {
			t.Errorf("after Release the context ended with %v; want ErrHandedOver", cause)
		}
		time.Sleep(time.Minute) // the watchdog of the worker renews
		again := held(t, worker, next.Context(), "k")
		if err := errors.Join(next.Err(), again.Err()); err != nil {
			t.Error(err)
		}
		release(t, again)
		release(t, next)
		if h := s.holder("k"); h != "" {
			t.Errorf("%s holds the lock after the release", h)
		}
	})
}

func TestATicketIsTakenOverOnce(t *testing.T) {
	for name, opts := range map[string][]core.Option{"lock": nil, "permit": {core.Permits(2)}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				web, one, two := watched(t, s), watched(t, s), watched(t, s)
				ticket := handOver(t, held(t, web, t.Context(), "k", opts...), time.Minute)
				s.Intercept(func(memstore.Request) memstore.Fault { return memstore.Delay(time.Millisecond) })
				var all sync.WaitGroup
				var leases, taken atomic.Int32
				for i := range 6 { // the message is delivered six times, twice to each process
					all.Go(func() {
						lease, err := []*core.Locker{web, one, two}[i%3].TakeOver(t.Context(), ticket)
						switch {
						case err == nil:
							leases.Add(1)
							time.Sleep(time.Second)
							release(t, lease)
						case errors.Is(err, core.ErrTicketTaken) && errors.Is(err, core.ErrTicket):
							taken.Add(1)
						default:
							t.Error(err)
						}
					})
				}
				all.Wait()
				if leases.Load() != 1 || taken.Load() != 5 {
					t.Errorf("%d leases and %d errors of a taken ticket; want 1 and 5", leases.Load(), taken.Load())
				}
				time.Sleep(30 * time.Minute)
				_, err := one.TakeOver(t.Context(), ticket)
				wantErr(t, err, core.ErrTicketTaken)
				time.Sleep(2 * time.Hour)
				if _, err = one.TakeOver(t.Context(), ticket); !errors.Is(err, core.ErrTicket) ||
					errors.Is(err, core.ErrTicketTaken) || errors.Is(err, core.ErrTicketRanOut) {
					t.Errorf("of a ticket of hours ago: %v; want ErrTicket alone", err)
				}
			})
		})
	}
}

func TestALockIsKeptForATicketNoLongerThanItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		web, worker, other := watched(t, s), watched(t, s), watched(t, s)
		lease := held(t, web, t.Context(), "k")
		got := make(chan time.Time, 1)
		go func() { // it has been refused, and knows of the 30 s of the handler
			lease, err := other.Lock(context.Background(), "k")
			got <- time.Now()
			if err == nil {
				_ = lease.Release(context.Background())
			}
		}()
		synctest.Wait()
		begin := time.Now()
		ticket := handOver(t, lease, 12*time.Second)
		if at := <-got; at.Sub(begin) > 12*time.Second+10*time.Millisecond {
			t.Errorf("a caller that waits got the lock after %v; it was kept for 12s", at.Sub(begin))
		}
		_, err := worker.TakeOver(t.Context(), ticket)
		wantErr(t, err, core.ErrTicketRanOut)
	})
}

// The lease of the worker is shorter than the time that was left for the ticket.
func TestAWaiterLearnsThatTheLockOfADeadWorkerEndsEarlier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		web, other := watched(t, s), watched(t, s)
		worker, err := core.New(cut{s}, core.Watchdog(3*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		ticket := handOver(t, held(t, web, t.Context(), "k"), time.Hour)
		got := make(chan time.Time, 1)
		go func() {
			lease, err := other.Lock(context.Background(), "k")
			got <- time.Now()
			if err == nil {
				_ = lease.Release(context.Background())
			}
		}()
		synctest.Wait()
		begin := time.Now()
		takeOver(t, worker, ticket)
		if at := <-got; at.Sub(begin) > 3*time.Second+10*time.Millisecond {
			t.Errorf("the lock is free for the waiter after %v; the worker died with a lease of 3s", at.Sub(begin))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_ = worker.Close(ctx)
	})
}

// cut is the way of a process to the store: no renewal and no release arrives.
type cut struct{ *notedStore }

func (c cut) Renew(_ context.Context, batch []driver.Renewal, done func(int, bool, error)) {
	for i := range batch {
		done(i, false, driver.ErrUnavailable)
	}
}

func (c cut) Release(context.Context, driver.ReleaseRequest) (driver.Waiting, error) {
	return driver.Waiting{}, driver.ErrUnavailable
}

func TestATicketIsBroughtAtTheInstantOfItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		web, worker := watched(t, s), watched(t, s)
		for d := -2; d <= 2; d++ {
			key := fmt.Sprint("k", d)
			ticket := handOver(t, held(t, web, t.Context(), key), time.Second)
			time.Sleep(time.Second + time.Duration(d))
			lease, err := worker.TakeOver(t.Context(), ticket)
			if inTime := d < 0; inTime != (err == nil) || err != nil && !errors.Is(err, core.ErrTicketRanOut) {
				t.Errorf("%d ns after the end: %v", d, err)
			}
			if err != nil {
				lease = held(t, web, t.Context(), key)
			}
			release(t, lease)
		}
	})
}

func TestOrLockWaitsInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		web, one, two := watched(t, s), watched(t, s), watched(t, s)
		first := held(t, web, t.Context(), "k")
		ticket := handOver(t, first, time.Minute)
		lease := takeOver(t, one, ticket, core.OrLock())
		again := make(chan *core.Lease)
		go func() { again <- takeOver(t, two, ticket, core.OrLock()) }()
		time.Sleep(10 * time.Second)
		select {
		case <-again:
			t.Fatal("two workers have the lock")
		default:
		}
		release(t, lease)
		second := <-again
		if second.Token() <= lease.Token() {
			t.Errorf("the token is %d after %d", second.Token(), lease.Token())
		}
		_, err := one.TakeOver(t.Context(), ticket, core.OrLock(), core.Wait(time.Second))
		wantErr(t, err, core.ErrHeld)
		release(t, second)

		late := handOver(t, held(t, web, t.Context(), "k"), time.Second)
		time.Sleep(10 * time.Hour)
		release(t, takeOver(t, two, late, core.OrLock()))
	})
}

func TestALockGoesFromWorkerToWorker(t *testing.T) {
	for name, opts := range map[string][]core.Option{"lock": nil, "permit": {core.Permits(1)}, "fixed": {core.TTL(time.Minute)}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				lockers := []*core.Locker{watched(t, s), watched(t, s), watched(t, s)}
				lease, last := held(t, lockers[0], t.Context(), "k", opts...), int64(0)
				for i := range 12 {
					if lease.Token() <= last {
						t.Errorf("token %d after %d", lease.Token(), last)
					}
					last = lease.Token()
					ticket := handOver(t, lease, time.Minute)
					var err error
					if ticket, err = core.ParseTicket(ticket.Text()); err != nil {
						t.Fatal(err)
					}
					lease = takeOver(t, lockers[i%3], ticket) // also the process that has made it
				}
				release(t, lease)
				release(t, held(t, lockers[1], t.Context(), "k", opts...))
			})
		})
	}
}

// Callers of the process that hands over, and of the process that takes over, wait for the lock.
func TestNoLocalWaiterGetsALockThatIsHandedOver(t *testing.T) {
	for name, opts := range map[string][]core.Option{"lock": nil, "permit": {core.Permits(1)}} {
		for _, slow := range []time.Duration{0, 10 * time.Millisecond} {
			t.Run(fmt.Sprint(name, slow), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newStore()
					s.Intercept(func(memstore.Request) memstore.Fault { return memstore.Delay(slow) })
					web, worker := watched(t, s), watched(t, s)
					lease := held(t, web, t.Context(), "k", opts...)
					var inside, got atomic.Int32
					var all sync.WaitGroup
					for i := range 6 {
						all.Go(func() {
							lease, err := []*core.Locker{web, worker}[i%2].Lock(t.Context(), "k", opts...)
							if err != nil {
								t.Error(err)
								return
							}
							if inside.Add(1) > 1 {
								t.Error("two callers have the lock")
							}
							got.Add(1)
							time.Sleep(time.Millisecond)
							inside.Add(-1)
							release(t, lease)
						})
					}
					time.Sleep(time.Second)
					ticket := handOver(t, lease, time.Minute)
					time.Sleep(time.Second)
					next := takeOver(t, worker, ticket)
					inside.Add(1)
					time.Sleep(time.Second)
					if n := got.Load(); n > 0 {
						t.Errorf("%d callers had the lock while it was kept for the worker", n)
					}
					inside.Add(-1)
					begin := time.Now()
					release(t, next)
					all.Wait()
					if d := time.Since(begin); d > time.Second {
						t.Errorf("the callers that waited got the lock within %v", d)
					}
				})
			})
		}
	}
}

// A try of another caller is on its way when the lock is taken over, and its answer comes later.
func TestATryOnItsWayMeetsATicket(t *testing.T) {
	for name, after := range map[string]time.Duration{"refused": 5 * time.Second, "after the release": 20 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				web, worker := watched(t, s), watched(t, s)
				ticket := handOver(t, held(t, web, t.Context(), "k"), time.Minute)
				s.Intercept(func(r memstore.Request) memstore.Fault {
					if r.Op == memstore.Acquire && r.From == "" {
						return memstore.Fault{Before: 2 * time.Second, After: after}
					}
					return memstore.Fault{}
				})
				waits := make(chan *core.Lease)
				for range 3 {
					go func() { waits <- held(t, worker, t.Context(), "k") }()
				}
				synctest.Wait()
				lease := takeOver(t, worker, ticket)
				time.Sleep(10 * time.Second)
				if err := lease.Err(); err != nil {
					t.Error(err)
				}
				s.Intercept(nil)
				release(t, lease)
				for range 3 {
					release(t, <-waits)
				}
			})
		})
	}
}

// The process still believes that it holds the lock, which the store has given to others since.
func TestATakeOverIsNewerThanALeaseThatWasLost(t *testing.T) {
	for name, opts := range map[string][]core.Option{"lock": nil, "permit": {core.Permits(2)}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				web, worker := watched(t, s), watched(t, s)
				stale := held(t, worker, t.Context(), "k", opts...)
				s.Expire("k")
				ticket := handOver(t, held(t, web, t.Context(), "k"), time.Minute)
				lease := takeOver(t, worker, ticket)
				wantErr(t, stale.Err(), core.ErrLost)
				wantErr(t, stale.Release(t.Context()), core.ErrLost)
				time.Sleep(time.Minute)
				if err := lease.Err(); err != nil {
					t.Error(err)
				}
				release(t, lease)
			})
		})
	}
}

func TestALateRenewalOrReleaseOfTheFormerHolderDoesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		web, worker := watched(t, s, core.Watchdog(3*time.Second), core.OnLost(func(core.Loss) { t.Error("a loss is reported") })), watched(t, s)
		lease := held(t, web, t.Context(), "k")
		s.Intercept(during(memstore.Renew, memstore.Delay(300*time.Millisecond)))
		time.Sleep(1100 * time.Millisecond) // the renewal is on its way
		if n := s.count(memstore.Renew); n != 1 {
			t.Fatalf("%d renewals are on their way, want 1", n)
		}
		ticket := handOver(t, lease, 2*time.Second)
		time.Sleep(1900 * time.Millisecond) // it has arrived, and did not lengthen anything
		next := takeOver(t, worker, ticket)
		owner := s.holder("k")
		release(t, lease)
		if h := s.holder("k"); h != owner {
			t.Errorf("%s holds the lock after a late release; want %s", h, owner)
		}
		release(t, next)
		if n := core.Orphans(web); n != 0 {
			t.Errorf("the reaper looks after %d owners", n)
		}
	})
}

func TestAHandOverWithoutAnAnswerFreesTheLock(t *testing.T) {
	for name, fault := range map[string]memstore.Fault{
		"lost reply": memstore.LostReply, "lost request": memstore.LostRequest, "unreachable": memstore.Unreachable,
		"late": memstore.Delay(20 * time.Second), "not ready": {Err: driver.ErrNotReady},
	} {
		for kind, opts := range map[string][]core.Option{"lock": nil, "permit": {core.Permits(1)}} {
			t.Run(name+" "+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newStore()
					web, other := watched(t, s), watched(t, s)
					lease := held(t, web, t.Context(), "k", opts...)
					s.Intercept(func(r memstore.Request) memstore.Fault {
						if r.From != "" || r.Op == memstore.Renew {
							return fault
						}
						return memstore.Fault{}
					})
					ticket, err := lease.HandOver(t.Context(), time.Hour)
					wantErr(t, err, core.ErrUnavailable)
					if !ticket.IsZero() {
						t.Error("there is a ticket together with an error")
					}
					wantErr(t, lease.Err(), core.ErrReleased)
					wantErr(t, lease.Release(t.Context()), core.ErrUnavailable)
					if cause := context.Cause(lease.Context()); cause == nil {
						t.Error("the context goes on, and the lock does not")
					}
					s.Intercept(nil)
					begin := time.Now()
					release(t, held(t, other, t.Context(), "k", opts...))
					if d := time.Since(begin); d > 45*time.Second {
						t.Errorf("the lock was free after %v", d)
					}
					release(t, held(t, web, t.Context(), "k", opts...))
				})
			})
		}
	}
}

func TestATakeOverWithoutAnAnswerFreesTheLock(t *testing.T) {
	for name, fault := range map[string]memstore.Fault{
		"lost reply": memstore.LostReply, "late": memstore.Delay(20 * time.Second), "lost request": memstore.LostRequest,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				web, worker := watched(t, s), watched(t, s)
				ticket := handOver(t, held(t, web, t.Context(), "k"), 25*time.Second)
				s.Intercept(moves(fault))
				_, err := worker.TakeOver(t.Context(), ticket)
				wantErr(t, err, core.ErrUnavailable)
				s.Intercept(nil)
				begin := time.Now()
				release(t, takeOver(t, worker, ticket, core.OrLock()))
				if d := time.Since(begin); d > 45*time.Second {
					t.Errorf("the lock was free after %v", d)
				}
				if lost := name == "lost request"; lost {
					return // the ticket was good still
				}
				_, err = worker.TakeOver(t.Context(), ticket)
				wantErr(t, err, core.ErrTicketTaken)
			})
		})
	}
}

func TestACallerThatLeavesWhileItTakesOverHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		web, worker := watched(t, s), watched(t, s)
		ticket := handOver(t, held(t, web, t.Context(), "k"), time.Minute)
		s.Intercept(moves(memstore.Delay(100 * time.Millisecond)))
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
		defer cancel()
		_, err := worker.TakeOver(ctx, ticket)
		wantErr(t, err, context.DeadlineExceeded)
		time.Sleep(time.Second)
		if h := s.holder("k"); h != "" {
			t.Errorf("%s holds the lock", h)
		}
	})
}

func TestALeaseThatIsNotTheCallersAloneIsNotHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := watched(t, s)
		refused := func(lease *core.Lease, want error) {
			t.Helper()
			if _, err := lease.HandOver(t.Context(), time.Minute); !errors.Is(err, want) {
				t.Errorf("HandOver: %v; want %v", err, want)
			}
			if err := lease.Err(); err != nil {
				t.Errorf("the lease does not go on: %v", err)
			}
			release(t, lease)
		}
		refused(held(t, l, t.Context(), "k", core.Shared()), core.ErrConfig)
		refused(held(t, l, t.Context(), strings.Repeat("k", 159)), core.ErrKey)
		all, err := l.LockAll(t.Context(), []string{"a", "b"})
		if err != nil {
			t.Fatal(err)
		}
		refused(all, core.ErrConfig)
		outer := held(t, l, t.Context(), "k")
		if _, err := outer.HandOver(t.Context(), time.Nanosecond); !errors.Is(err, core.ErrConfig) {
			t.Errorf("for a nanosecond: %v", err)
		}
		inner := held(t, l, outer.Context(), "k")
		if _, err := outer.HandOver(t.Context(), time.Minute); !errors.Is(err, core.ErrConfig) {
			t.Errorf("with another hold: %v; want ErrConfig", err)
		}
		refused(inner, core.ErrConfig)
		if err := outer.Err(); err != nil {
			t.Error(err)
		}
		handOver(t, outer, time.Minute)
		_, err = outer.HandOver(t.Context(), time.Minute)
		wantErr(t, err, core.ErrHandedOver)
		released := held(t, l, t.Context(), "r")
		release(t, released)
		if _, err = released.HandOver(t.Context(), time.Minute); !errors.Is(err, core.ErrReleased) || errors.Is(err, core.ErrHandedOver) {
			t.Errorf("after a release: %v; want ErrReleased", err)
		}
		_, err = core.HandOver(t.Context(), time.Minute)
		wantErr(t, err, core.ErrNoLease)
	})
}

func TestALeaseThatWasLostIsNotHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		losses := 0
		l := watched(t, s, core.OnLost(func(core.Loss) { losses++ }))
		lease := held(t, l, t.Context(), "k")
		s.Expire("k")
		_, err := lease.HandOver(t.Context(), time.Minute)
		wantErr(t, err, core.ErrLost)
		wantErr(t, lease.Release(t.Context()), core.ErrLost)
		synctest.Wait()
		if losses != 1 {
			t.Errorf("%d losses are reported, want 1", losses)
		}
		if h := s.holder("k"); h != "" {
			t.Errorf("%s holds the lock", h)
		}
		known := held(t, l, t.Context(), "k")
		s.Expire("k")
		<-known.Context().Done()
		_, err = known.HandOver(t.Context(), time.Minute)
		wantErr(t, err, core.ErrLost)
		bounded := held(t, l, t.Context(), "m", core.MaxHold(time.Second))
		<-bounded.Context().Done()
		_, err = bounded.HandOver(t.Context(), time.Minute)
		wantErr(t, err, core.ErrMaxHold)
		_ = bounded.Release(t.Context())
	})
}

func TestAStoreThatMovesNoLockSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		plain := watched(t, struct{ core.Store }{s})
		lease := held(t, plain, t.Context(), "k")
		_, err := lease.HandOver(t.Context(), time.Minute)
		wantErr(t, err, core.ErrConfig)
		if err := lease.Err(); err != nil {
			t.Error(err)
		}
		release(t, lease)
		ticket := handOver(t, held(t, watched(t, s), t.Context(), "k"), time.Minute)
		_, err = plain.TakeOver(t.Context(), ticket)
		wantErr(t, err, core.ErrConfig)
	})
}

func TestATicketOfAnotherStoreGrantsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, other := newStore(), newStore()
		a, b := watched(t, s), watched(t, other)
		ticket := handOver(t, held(t, a, t.Context(), "k"), time.Minute)
		for _, opts := range [][]core.TakeOverOption{nil, {core.OrLock()}} {
			_, err := b.TakeOver(t.Context(), ticket, opts...)
			if !errors.Is(err, core.ErrTicket) || errors.Is(err, core.ErrTicketRanOut) || !strings.Contains(err.Error(), "another store") {
				t.Errorf("a ticket of another store: %v", err)
			}
			_, err = b.TakeOver(t.Context(), core.Ticket{}, opts...)
			wantErr(t, err, core.ErrTicket)
		}
		if n := other.count(""); n != 0 {
			t.Errorf("%d requests for a ticket of another store", n)
		}
		s.Empty() // a server without its data
		if _, err := a.TakeOver(t.Context(), ticket); !errors.Is(err, core.ErrTicket) || errors.Is(err, core.ErrTicketRanOut) {
			t.Errorf("the store has lost the lock: %v; want ErrTicket alone", err)
		}
		release(t, takeOver(t, a, ticket, core.OrLock()))
		for _, o := range []core.TakeOverOption{core.Shared(), core.Newest()} {
			_, err := a.TakeOver(t.Context(), ticket, core.OrLock(), o)
			wantErr(t, err, core.ErrConfig)
		}
	})
}

// Whether a ticket is good depends on the clock of the store alone. The clock of a worker may be wrong.
func TestAWorkerWhoseClockIsAheadTakesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		web, worker := watched(t, s), watched(t, s)
		ticket := core.Aged(handOver(t, held(t, web, t.Context(), "k"), time.Minute), 90*time.Minute)
		release(t, takeOver(t, worker, ticket))
		if _, err := worker.TakeOver(t.Context(), ticket); !errors.Is(err, core.ErrTicketTaken) {
			t.Errorf("a ticket that was used: %v; want ErrTicketTaken", err)
		}
	})
}

func TestAHandlerHandsItsLockOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		web, worker := watched(t, s), watched(t, s)
		for name, opts := range map[string][]core.GuardOption{
			"plain": nil, "answer first": {core.AnswerFirst()}, "checked": {core.CheckAnswer()},
		} {
			guard := core.Serialize(web, "account", opts...)
			var ticket core.Ticket
			var after func() error
			refusal := guard.Do(t.Context(), &shown{}, func(inner context.Context) bool {
				after = func() error { return context.Cause(inner) }
				var err error
				if ticket, err = core.HandOver(inner, time.Minute); err != nil {
					t.Error(err)
				}
				if inner.Err() != nil {
					t.Error("the handler cannot answer: its context has ended")
				}
				wantErr(t, core.Check(inner), core.ErrHandedOver)
				return false // net/http answers afterwards
			})
			if refusal != nil {
				t.Errorf("%s: the answer of the handler is replaced: %v", name, refusal)
			}
			if cause := after(); !errors.Is(cause, core.ErrHandedOver) {
				t.Errorf("%s: the context of the handler ended with %v", name, cause)
			}
			if h := s.holder("account"); h == "" {
				t.Errorf("%s: the middleware has released the lock", name)
			}
			release(t, takeOver(t, worker, ticket))
		}
	})
}

// Release is called while the request that hands the lock over is on its way.
func TestAReleaseDuringAHandOverEndsTheContextAndNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		web, worker := watched(t, s), watched(t, s)
		lease := held(t, web, t.Context(), "k")
		s.Intercept(moves(memstore.Delay(50 * time.Millisecond)))
		got := make(chan core.Ticket)
		go func() { got <- handOver(t, lease, time.Minute) }()
		time.Sleep(20 * time.Millisecond)
		release(t, lease)
		ticket := <-got
		if cause := context.Cause(lease.Context()); !errors.Is(cause, core.ErrHandedOver) {
			t.Errorf("the context ended with %v", cause)
		}
		release(t, takeOver(t, worker, ticket))
		if n := s.count(memstore.Release); n != 1 {
			t.Errorf("%d releases, want the one of the worker", n)
		}
	})
}

// A lease that began with the message of a release is no hold in the store until it is renewed.
func TestALeaseThatBeganWithAnOfferIsHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		var lease *core.Lease
		if asked := p.asks(func() { lease = p.handOver(func() {}) }); len(asked) != 1 {
			t.Fatalf("%d requests; want one, which is refused: the lease did not begin with an offer", len(asked))
		}
		ticket := handOver(t, lease, time.Minute)
		release(t, takeOver(t, p.holder, ticket))
	})
}

func TestALeaseThatBeganWithAnOfferIsHandedOverUnderAnEndedContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		lease := p.handOver(func() {})
		p.store.Intercept(always(memstore.Fault{Before: time.Millisecond}))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		ticket, err := lease.HandOver(ctx, time.Minute)
		if err != nil {
			t.Fatalf("the client has gone, and the handler cannot hand its lock over: %v", err)
		}
		release(t, takeOver(t, p.holder, ticket))
	})
}

// A list that names a locker which takes offers says that the lock was offered to it. Nothing is offered
// where a lock is moved to a ticket, so the others waited for the end of an offer that there was not.
func TestAHandOverForAShortTimeIsNotAnOffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		lease := held(t, p.holder, t.Context(), "k")
		_, leave := p.waits()
		defer leave()
		synctest.Wait()
		third, got := newLocker(t, p.store), make(chan time.Time, 1)
		go func() {
			if l, err := third.Lock(t.Context(), "k"); err == nil {
				got <- time.Now()
				_ = l.Release(t.Context())
			}
		}()
		synctest.Wait()
		p.seen.lost, p.seen.deaf = true, true // the first of the list has died
		begin := time.Now()
		handOver(t, lease, 100*time.Millisecond)
		if took := (<-got).Sub(begin); took > time.Second {
			t.Errorf("the second of the list gets the lock after %v; want a short time after the 100ms of the ticket", took)
		}
	})
}

func TestALockerThatClosesTakesNothingOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		web := watched(t, s)
		worker, err := core.New(s)
		if err != nil {
			t.Fatal(err)
		}
		lease := held(t, web, t.Context(), "k")
		ticket := handOver(t, lease, time.Minute)
		s.Intercept(moves(memstore.Delay(50 * time.Millisecond)))
		taken := make(chan error)
		go func() {
			_, err := worker.TakeOver(t.Context(), ticket)
			taken <- err
		}()
		time.Sleep(60 * time.Millisecond) // the store has carried it out
		if err := worker.Close(t.Context()); err != nil {
			t.Error(err)
		}
		wantErr(t, <-taken, core.ErrClosed)
		_, err = worker.TakeOver(t.Context(), ticket)
		wantErr(t, err, core.ErrClosed)
		release(t, held(t, web, t.Context(), "k"))
	})
}
