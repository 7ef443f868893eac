package idempotency

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/reason"
)

// claim asks for the record until it is granted, or it is clear that it will not
// be. If the caller leaves before, no claim remains.
func (e *Engine) claim(ctx context.Context, a *attempt) (reply record.ClaimReply, err error) {
	c := e.config
	if ctx.Err() != nil { // or a claim would have to be given up again
		return reply, claiming(ctx)
	}
	w := waiter{engine: e, id: a.id, until: time.Now().Add(c.wait)}
	defer func() {
		if w.woken != nil {
			w.stop()
		}
	}()
	for {
		sent := time.Now()
		reply, err = e.store.Claim(ctx, record.ClaimRequest{
			ID: a.id, Token: a.token, Fingerprint: a.fingerprint,
			Lease: c.lease, Retention: c.retention, Strict: c.strict, Transactional: c.transactional, Tombstone: c.tombstone > 0,
			Waits: c.wait > 0 && !a.job, Ticket: a.ticket, Deadline: sent.Add(storeWait), Late: a.claimedLate,
		})
		if errors.Is(err, driver.ErrPending) {
			switch {
			case w.knows(ctx):
				return record.ClaimReply{State: record.StateInFlight}, nil
			case ctx.Err() != nil && time.Since(sent) < silent:
				return reply, claiming(ctx)
			}
			return reply, fmt.Errorf("%w: %w", core.ErrUnavailable, errNoAnswer)
		}
		if !a.ambiguous {
			// Once a try may be executed at any time, a claim that is found to be
			// ours may have been granted to that one: its lease counts from there.
			a.sent = reply.Sent
		}
		a.ambiguous = a.ambiguous || reply.Ambiguous
		now := time.Now()
		switch {
		case err != nil:
			err = unavailable(err)
			if w.knows(ctx) && !errors.Is(err, ErrDamaged) && reasonOf(ctx, err) == reason.NoRecord {
				reply, err = record.ClaimReply{State: record.StateInFlight}, nil
			}
		case reply.State == record.StateGranted:
			a.generation, a.stored = reply.Generation, reply.Steps
			if now.Before(a.sent.Add(c.lease - clock.Drift(c.lease))) {
				return reply, nil
			}
			a.ambiguous = true // it is ours, and has to be given back
			err = fmt.Errorf("%w: %w", core.ErrUnavailable, errTooLate)
		case reply.State == record.StateInFlight && reply.Response == "" && !a.job:
			var again bool
			if again, err = w.sleep(ctx, reply, sent); again {
				continue
			}
		}
		if a.ambiguous {
			e.background.abandon(a, true)
		}
		return reply, err
	}
}

// Why a store counts as unavailable. Each is the last that an error wraps: logs have the root
// cause (observe.RootCause).
var (
	errNoAnswer = errors.New("no answer in time")
	errTooLate  = errors.New("a claim came after the end of its lease")
)

// claimedLate takes the outcome of a claim after its caller has left.
func (a *attempt) claimedLate(reply record.ClaimReply, _ error) {
	if a.ambiguous || reply.Ambiguous || reply.State == record.StateGranted {
		a.engine.background.abandon(a, a.ambiguous || reply.Ambiguous)
	}
}

// claiming is the error of a caller if its context ended before it had an answer.
func claiming(ctx context.Context) error {
	return fmt.Errorf("interlock: claiming a record: %w", context.Cause(ctx))
}

// unavailable makes an error of a store say so.
func unavailable(err error) error {
	if errors.Is(err, core.ErrUnavailable) || errors.Is(err, ErrDamaged) || errors.Is(err, core.ErrConfig) {
		return err
	}
	return fmt.Errorf("%w: %w", core.ErrUnavailable, err)
}

const (
	// pollWait is the pause between looks at a record if its completion may not be
	// announced.
	pollWait = time.Second
	// lookWait is the longest pause between looks at any other record: an announcement can be
	// lost, or fail.
	lookWait = 3 * time.Second
)

// silent is after how long a request without an answer is a fault of the store, also where its client
// has gone or its deadline has passed: clients often give up before the store's own time limits
// end. Locks count so, too.
const silent = 250 * time.Millisecond

// defaultWaiters bounds the duplicates of one key that wait at a time. Each keeps
// its connection, its goroutine and its body: 32 bodies of 1 MiB are 32 MiB for a
// key. A client that retries has one or two requests under way.
const defaultWaiters = 32

// waiters counts, by record, the duplicates that wait.
type waiters struct {
	mu sync.Mutex
	n  map[string]int
}

// add counts one more, unless limit are there.
func (w *waiters) add(id string, limit int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.n[id] >= limit {
		return false
	}
	if w.n == nil {
		w.n = make(map[string]int)
	}
	w.n[id]++
	return true
}

// remove counts one less.
func (w *waiters) remove(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.n[id]--; w.n[id] == 0 {
		delete(w.n, id)
	}
}

// waiter is a duplicate that waits for the request in flight.
type waiter struct {
	engine *Engine
	id     string
	until  time.Time
	woken  chan struct{} // nil: it has not begun
	cancel func()        // of Await
}

// sleep waits until something may have changed: the request in flight is done, its
// lease has ended, or the store could not tell. It returns false when the duplicate is
// to be answered with the last known state: there is no more time, or too many wait. An
// error says that the client has gone.
func (w *waiter) sleep(ctx context.Context, reply record.ClaimReply, asked time.Time) (again bool, err error) {
	now, e := time.Now(), w.engine
	if !now.Before(w.until) {
		return false, nil
	}
	if w.woken == nil {
		if !e.waiters.add(w.id, e.config.maxWaiters) {
			return false, nil
		}
		woken := make(chan struct{}, 1)
		w.woken = woken
		w.cancel = e.store.Await(w.id, asked, func() {
			select {
			case woken <- struct{}{}:
			default:
			}
		})
	}
	pause := lookWait
	if !reply.Listed {
		pause = pollWait
	}
	timer := time.NewTimer(min(pause, reply.Left+time.Millisecond, w.until.Sub(now)))
	defer timer.Stop()
	select {
	case <-w.woken:
	case <-timer.C:
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			// The request in flight goes on: the answer to this request says so.
			return false, nil
		}
		return false, fmt.Errorf("interlock: waiting for a request in flight: %w", context.Cause(ctx))
	}
	return true, nil
}

// stop ends the wait, which has begun.
func (w *waiter) stop() {
	w.engine.waiters.remove(w.id)
	if w.cancel != nil { // else Await panicked
		w.cancel()
	}
}

// knows reports whether a duplicate gets the last known state, a request in flight,
// after it has waited and asked the store once more without an answer. An answer that
// the state is unknown would be wrong: an endpoint that fails open would run its handler
// at the same time as the handler in flight. A client that has gone gets no answer.
func (w *waiter) knows(ctx context.Context) bool {
	return w.woken != nil && !errors.Is(ctx.Err(), context.Canceled)
}
