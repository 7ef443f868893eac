package memstore

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// travel is a request on its way to the store, and its reply on the way back.
type travel[T any] struct {
	fault    Fault
	deadline time.Time         // when the caller leaves; zero is never
	execute  func() (T, error) // in the store
	lost     T                 // the caller's reply, together with the error of the fault
	// late, unless nil, gets the outcome if the caller has left before.
	late func(T, error)
	// meanwhile, unless nil, is called once when the request has been sent.
	meanwhile func()
}

// send sends the request and returns its outcome. If ctx ends or the deadline passes
// before, send returns an error: ErrPending if the outcome goes to late.
func (t travel[T]) send(ctx context.Context) (T, error) {
	if t.fault.Before <= 0 && t.fault.After <= 0 {
		out := t.arrive()
		if t.meanwhile != nil {
			t.meanwhile()
		}
		return out.rep, out.err
	}
	under := &underway[T]{answer: make(chan outcome[T], 1)}
	// A timer that is still set at the end of a test disturbs neither a bubble nor a
	// check for leaked goroutines. A goroutine that sleeps would.
	time.AfterFunc(t.fault.Before, func() {
		out := t.arrive()
		time.AfterFunc(t.fault.After, func() {
			if !under.deliver(out) && t.late != nil {
				t.late(out.rep, out.err)
			}
		})
	})
	if t.meanwhile != nil {
		t.meanwhile()
	}
	var deadline <-chan time.Time
	if !t.deadline.IsZero() {
		timer := time.NewTimer(time.Until(t.deadline))
		defer timer.Stop()
		deadline = timer.C
	}
	select {
	case out := <-under.answer:
		return out.rep, out.err
	case <-ctx.Done():
	case <-deadline:
	}
	var none T
	if err := t.fault.own.pass(); err != nil {
		return none, err
	}
	if out, came := under.leave(); came {
		return out.rep, out.err
	}
	if t.late != nil {
		return none, unanswered(ctx, driver.ErrPending)
	}
	return none, unanswered(ctx, driver.ErrUnavailable)
}

// arrive has the store execute the request, and returns what comes back.
func (t travel[T]) arrive() (out outcome[T]) {
	if err := t.fault.own.pass(); err != nil {
		return outcome[T]{t.lost, err}
	}
	if t.fault.executed() {
		out.rep, out.err = t.execute()
		if t.fault.Then != nil {
			t.fault.Then()
		}
	}
	if err := cmp.Or(t.fault.own.pass(), t.fault.Err); err != nil {
		return outcome[T]{t.lost, err}
	}
	return out
}

// unanswered is the error of a caller that leaves.
func unanswered(ctx context.Context, what error) error {
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%w: no answer in time: %w", what, cause)
	}
	return fmt.Errorf("%w: no answer in time", what)
}

type outcome[T any] struct {
	rep T
	err error
}

// underway is a request that takes time. Either its caller gets the outcome, or
// it has left before: the mutex makes that one or the other.
type underway[T any] struct {
	mu     sync.Mutex
	left   bool
	answer chan outcome[T] // has room for the only one
}

// deliver hands over the outcome. It returns false if the caller has left.
func (u *underway[T]) deliver(out outcome[T]) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.left {
		u.answer <- out
	}
	return !u.left
}

// leave notes that the caller leaves, unless the outcome came in the same moment.
func (u *underway[T]) leave() (out outcome[T], came bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	select {
	case out := <-u.answer:
		return out, true
	default:
		u.left = true
		return outcome[T]{}, false
	}
}
