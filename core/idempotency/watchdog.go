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
	"github.com/interlock-go/interlock/core/internal/timers"
)

// watchdog keeps the leases of the claims of an engine: it renews them when a third has
// passed, and ends the context of a handler when its claim can no longer be trusted.
// Leases that are due together are renewed together.
//
// A claim is with the watchdog from its grant until its record is decided. A renewal
// that is on its way then finds nothing to do: the store compares token and state.
type watchdog struct {
	store  Store
	clock  clock.Clock
	start  func(func()) // runs a renewal
	events timers.Scheduler[*claimLease]

	mu     sync.Mutex
	closed bool
}

// claimLease is the watchdog's state of a claim; guarded by its mutex.
type claimLease struct {
	timers.Slot
	attempt *attempt

	running  bool          // the handler is
	deadline clock.Instant // until when the lease is good
	bound    clock.Instant // of MaxHold; zero once it has passed
	cause    error         // why the claim cannot be trusted
	decided  bool          // it is decided what becomes of the record, while the handler goes on
	pending  bool          // a commit of it goes on in the background

	renewAt  clock.Instant
	renewing bool
	stopped  bool // no more renewals
}

// Why a claim is lost. The reason is the last that the error wraps: logs have the root cause
// (observe.RootCause).
var (
	errLapsed    = fmt.Errorf("%w: %w", core.ErrLost, errors.New("the claim was not renewed in time"))
	errTakenOver = fmt.Errorf("%w: %w", core.ErrLost, errors.New("another attempt has taken over"))
	errGiven     = fmt.Errorf("%w: %w", core.ErrLost, errors.New("the request is handed over"))
	errReturned  = fmt.Errorf("%w: %w", core.ErrLost, errors.New("the handler has returned"))
)

func (w *watchdog) init(store Store, start func(func())) {
	w.store, w.clock, w.start = store, clock.New(), start
	w.events.Clock, w.events.Go, w.events.Serve = &w.clock, start, w.serve
}

// slack is how much earlier than due a renewal may go: fewer, larger batches.
func slack(lease time.Duration) time.Duration { return min(lease/60, 50*time.Millisecond) }

// begin takes the claim of an attempt just before its handler runs. It reports false
// when the engine is closed.
func (w *watchdog) begin(a *attempt) bool {
	c := a.engine.config
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	l, sent := &a.lease, w.clock.Of(a.sent)
	l.attempt, l.running = a, true
	l.deadline = sent.Add(c.lease - clock.Drift(c.lease))
	l.renewAt = sent.Add(c.lease / 3)
	l.bound = w.clock.Now().Add(c.maxHold)
	w.schedule(l)
	return true
}

// lost returns why a claim cannot be trusted at this moment, or nil. It reads the
// clock itself, so it is right also where the goroutine was late.
func (w *watchdog) lost(a *attempt) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := &a.lease
	if l.cause == nil && l.running && !l.decided && w.clock.Now() >= l.deadline {
		return errLapsed
	}
	return l.cause
}

// lose ends the context of an attempt.
func (w *watchdog) lose(a *attempt, cause error) {
	if w.noteLoss(&a.lease, cause) {
		a.cancel(cause)
	}
}

// noteLoss reports whether the loss is news to a handler that runs.
func (w *watchdog) noteLoss(l *claimLease, cause error) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.cause != nil || !l.running {
		return false
	}
	l.cause, l.stopped = cause, true
	w.schedule(l)
	return true
}

// decide says that it is decided what becomes of the record: it is in the store, or left to
// the end of the lease. It reports whether a commit of the attempt still goes on in
// the background.
func (w *watchdog) decide(a *attempt) (pending bool) {
	w.change(a, func(l *claimLease) { l.decided, l.stopped, pending = true, l.stopped || !l.pending, l.pending })
	return pending
}

// keep says that it is decided what becomes of the record, and that a commit goes on in the
// background. The lease is renewed until finish.
func (w *watchdog) keep(a *attempt) {
	w.change(a, func(l *claimLease) { l.decided, l.pending = true, true })
}

// finish says that nothing goes on in the background any more.
func (w *watchdog) finish(a *attempt) {
	w.change(a, func(l *claimLease) { l.pending, l.stopped = false, true })
}

// end says that the handler is not running any more.
func (w *watchdog) end(a *attempt) { w.change(a, func(l *claimLease) { l.running = false }) }

// abandon says that the claim is given up.
func (w *watchdog) abandon(a *attempt) {
	w.change(a, func(l *claimLease) { l.running, l.stopped = false, true })
}

// change changes a claim, and sets the time of its next event.
func (w *watchdog) change(a *attempt, f func(*claimLease)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&a.lease)
	w.schedule(&a.lease)
}

// close ends all renewals, and the contexts of the handlers that still run.
func (w *watchdog) close() {
	w.mu.Lock()
	w.closed = true
	var ended []*attempt
	for _, l := range w.events.Stop() {
		if l.close() {
			ended = append(ended, l.attempt)
		}
	}
	w.mu.Unlock()
	for _, a := range ended {
		a.cancel(core.ErrClosed)
	}
}

// serve runs the work that is due. Renewals go out on separate goroutines, one for each
// length of lease, since each has its own bound: a store that hangs delays nothing
// here. A context ends outside of the mutex, for it calls what others have attached to
// it.
func (w *watchdog) serve(batch []*claimLease, now clock.Instant) {
	renew, lost := w.sort(batch, now)
	for _, l := range lost {
		l.attempt.cancel(l.cause)
	}
	for lease, attempts := range renew {
		w.start(func() { w.renew(lease, attempts) })
	}
}

// loss is a claim that was lost, and why.
type loss struct {
	attempt *attempt
	cause   error
}

// sort returns which attempts are to be renewed, by the length of their leases, and
// which have lost their claims. It schedules what comes next for each.
func (w *watchdog) sort(batch []*claimLease, now clock.Instant) (renew map[time.Duration][]*attempt, lost []loss) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range batch {
		if w.closed {
			if l.close() { // it is not in the list that close had
				lost = append(lost, loss{l.attempt, core.ErrClosed})
			}
			continue
		}
		if cause := l.expire(now); cause != nil {
			lost = append(lost, loss{l.attempt, cause})
		}
		lease := l.attempt.engine.config.lease
		if l.renews() && l.renewAt <= now.Add(slack(lease)) {
			l.renewing = true
			if renew == nil {
				renew = make(map[time.Duration][]*attempt)
			}
			renew[lease] = append(renew[lease], l.attempt)
		}
		w.schedule(l) // its next event is later than now
	}
	return renew, lost
}

// renew sends one batch, bounded by a sixth of the lease. It starts at a third of the
// lease, so that two tries fit before the end.
func (w *watchdog) renew(lease time.Duration, batch []*attempt) {
	extensions := make([]record.Extension, len(batch))
	for i, a := range batch {
		extensions[i] = record.Extension{ID: a.id, Token: a.token, Lease: lease, Retention: a.engine.config.retention}
	}
	ctx, cancel := context.WithTimeout(context.Background(), max(lease/6, time.Millisecond))
	defer cancel()
	sent := w.clock.Now()
	w.store.Extend(ctx, extensions, func(i int, err error) {
		if cause := w.renewed(&batch[i].lease, sent, err); cause != nil {
			batch[i].cancel(cause)
		}
	})
}

// renewed takes the outcome of a renewal. It returns why the handler's context is to
// end, or nil.
func (w *watchdog) renewed(l *claimLease, sent clock.Instant, err error) (cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	lease := l.attempt.engine.config.lease
	l.renewing = false
	switch {
	case errors.Is(err, driver.ErrNotOwner):
		// Taken over, or gone. A commit is tried all the same: it finds out.
		l.stopped = true
		if l.running && l.cause == nil && !l.decided {
			cause = errTakenOver
			l.cause = cause
		}
	case err != nil:
		l.renewAt = w.clock.Now().Add(max(min(lease/20, time.Second), time.Millisecond))
	default:
		// A late success revives no context, but keeps others away.
		l.deadline = sent.Add(lease - clock.Drift(lease))
		l.renewAt = sent.Add(lease / 3)
	}
	w.schedule(l)
	return cause
}

// schedule sets the time of a claim's next event. Called with w.mu held.
func (w *watchdog) schedule(l *claimLease) {
	at, tolerance := clock.Never, time.Duration(0)
	if l.running && l.cause == nil && !l.decided {
		at = l.deadline
	}
	if l.running && l.bound != 0 && l.bound < at {
		at = l.bound
	}
	if l.renews() && l.renewAt < at {
		at, tolerance = l.renewAt, slack(l.attempt.engine.config.lease)
	}
	if at == clock.Never {
		w.events.Cancel(l)
	} else {
		w.events.Schedule(l, at, tolerance)
	}
}

// The methods below are called with the watchdog's mutex held.

// renews reports whether the claim is renewed when its time has come.
func (l *claimLease) renews() bool {
	return (l.running || l.pending) && !l.renewing && !l.stopped
}

// expire notes that the lease has ended, or that the claim was held too long.
func (l *claimLease) expire(now clock.Instant) (cause error) {
	if !l.running {
		return nil
	}
	if l.cause == nil && !l.decided && now >= l.deadline {
		// Another may take over from now on. Until one has, renewing goes on: the work of the
		// handler may still count.
		cause = errLapsed
	}
	if l.bound != 0 && now >= l.bound {
		l.bound, l.stopped = 0, true
		if l.cause == nil && cause == nil {
			cause = core.ErrMaxHold
		}
	}
	if cause != nil {
		l.cause = cause
	}
	return cause
}

// close ends the claim as the engine closes. It reports whether that is news to a
// handler that runs.
func (l *claimLease) close() bool {
	if !l.running || l.cause != nil {
		return false
	}
	l.cause = core.ErrClosed
	return true
}
