package core_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
)

// slowFirst is a store that gives no answer to the first try, and an error when the try's
// deadline has come or its caller has left.
type slowFirst struct {
	*memstore.Store
	returns bool // else the error comes late
	tries   atomic.Int32
}

func (s *slowFirst) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	if s.tries.Add(1) > 1 {
		return s.Store.Acquire(ctx, req)
	}
	rep, err := driver.Reply{Ambiguous: true, Sent: time.Now()}, fmt.Errorf("%w: the connection broke", driver.ErrUnavailable)
	ctx, cancel := context.WithDeadline(ctx, req.Deadline)
	defer cancel()
	<-ctx.Done()
	if s.returns {
		return rep, err
	}
	time.AfterFunc(time.Second, func() { req.Late(rep, err) })
	return driver.Reply{}, driver.ErrPending
}

// The patience of one caller with the store says nothing about the callers after it.
func TestAnImpatientCallerDoesNotFailTheCallersBehindIt(t *testing.T) {
	for name, returns := range map[string]bool{"the try fails at its deadline": true, "the try fails after its caller has left": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLocker(t, &slowFirst{Store: memstore.New(), returns: returns})
				impatient := make(chan error)
				go func() {
					_, err := l.Lock(t.Context(), "k", core.Wait(50*time.Millisecond))
					impatient <- err
				}()
				synctest.Wait()
				patient := make(chan error)
				go func() {
					lease, err := l.Lock(t.Context(), "k")
					if err == nil {
						err = lease.Release(t.Context())
					}
					patient <- err
				}()
				wantErr(t, <-impatient, core.ErrUnavailable)
				wantErr(t, <-patient, nil)
			})
		})
	}
}

// At the end of its wait each caller after it gets the error that the store did not
// answer, and not that the lock is held.
func TestCallersOfAStoreThatDoesNotAnswerLeaveAtTheirOwnTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l := newLocker(t, store)
		store.Intercept(func(memstore.Request) memstore.Fault {
			return memstore.Fault{Before: 10 * time.Second, Err: driver.ErrUnavailable}
		})
		type outcome struct {
			err  error
			took time.Duration
		}
		outcomes := make(chan outcome)
		begin := time.Now()
		for i := range 10 {
			go func() {
				_, err := l.Lock(t.Context(), "k", core.Wait(2*time.Second+time.Duration(i)*time.Millisecond))
				outcomes <- outcome{err, time.Since(begin)}
			}()
			synctest.Wait()
		}
		for range 10 {
			o := <-outcomes
			wantErr(t, o.err, core.ErrUnavailable)
			if o.took > 3100*time.Millisecond {
				t.Errorf("a caller that waits for 2 s was told after %v", o.took)
			}
		}
		time.Sleep(time.Minute) // until the requests that are left have their answers
	})
}
