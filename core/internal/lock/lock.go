package lock

import (
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
)

// notReadyWait is how long a caller that does not wait gives a store that is not
// ready.
const notReadyWait = 250 * time.Millisecond

// lock is the state of one key in this process, for as long as a caller here holds it or
// waits for it. Waiting is first in, first out: only the first waiter talks to the store, on
// its own goroutine. Where several permits may be free, the waiters after it do so at the
// same time (permits.go).
//
// The events of the state machine are among the methods of this file, and of the files that
// the package comment names with it. The methods are called with the shard's mutex held, and
// leave it held.
type lock struct {
	shard *shard
	key   string

	first     *Waiter       // of the queue; its prev is the last
	own       *ownership    // in the phases held and releasing
	places    *places       // nil while the process has none, and releases none
	acq       *acquisition  // nil while there is nothing to remember of tries
	n         int32         // waiters
	alone     int32         // of these, how many want the lock for themselves
	declined  clock.Instant // when the last request was sent that takes this process out of the list
	far       time.Duration // the greatest patience in the lists that were seen lately
	gone      absence       // how long the turns of others take
	phase     phase
	asking    int32 // in the phase acquiring: tries on their way
	strays    int32 // of these, how many have lost the waiter that sent them
	courteous bool  // kept for the courtesy alone
	listed    bool  // this process is in the lock's list of waiting lockers, as far as is known
	declining int32 // requests that take it out of the list, and may yet be carried out
	surplus   bool  // the refusal of the first may also refuse callers after it
}

// phase is where a lock is; see the package comment.
type phase int8

const (
	idle phase = iota
	acquiring
	held
	releasing
)

// proceed finds the phase of a lock that is not held, and that no release is under way
// for.
func (l *lock) proceed(fx *effects) {
	l.phase, fx.look = idle, l.first
	if l.listed {
		l.declines(fx)
	}
	if l.asking == 0 && l.acq != nil && l.acq.named != 0 && (l.first == nil || l.first.Terms.Kind.Place()) {
		fx.passOn, l.acq.named = l.acq.named, 0
	}
	switch {
	case l.asking > 0:
		l.phase, fx.look = acquiring, nil // apply looks who may ask
	case l.first != nil:
		l.phase = acquiring
	case l.acq != nil && l.places != nil && !l.courteous:
		// No waiter gets the signals from here on, so the result of the last try must not keep
		// the next caller from asking.
		*l.acq = acquisition{unwatch: l.acq.unwatch}
	}
}

// join handles a new caller: queue it, let it share an existing hold, or return an
// error. For an exclusive caller that waits now may be zero, and ahead always.
func (l *lock) join(w *Waiter, now clock.Instant, ahead time.Duration, fx *effects) error {
	if w.Terms.Wait == 0 && l.own != nil && now >= l.own.deadline() {
		// A caller that does not wait must not be refused because of a lease that is over: if
		// the process was stopped, or its release gets no answer, others may have had the lock
		// since.
		l.outlive(now, fx)
	}
	switch most := w.Terms.MaxWaiters; {
	case l.shard.table.closed.Load():
		return fmt.Errorf("%w: %q", ErrClosed, l.key)
	case l.places != nil && l.joinsOpen(w, now, ahead, fx):
		return nil
	case w.Terms.Line == driver.Newest:
		l.comes(w, fx)
		return nil
	case l.phase == idle:
		l.phase = acquiring
	case w.Terms.Wait == 0 && l.mayTryNext(w, now):
		l.surplus = true
	case w.Terms.Wait == 0 && l.phase == releasing && (l.first == nil || w.Terms.Kind.Place() && l.alone == 0):
		// The answer to the release comes first. Without it this caller would be refused
		// although the store may have let others have the lock meanwhile. Several callers
		// that want places can have them at the same time.
		w.marks |= waited
		l.surplus = true
	case w.Terms.Wait == 0:
		w.marks |= waited
		return l.isHeld(w)
	case most > 0 && l.waitersBefore(w) >= most:
		w.marks |= waited
		return queueFull(w)
	default:
		w.marks |= waited
		l.surplus = l.surplus || most > 0 && int(l.n) >= most
	}
	l.push(w)
	if l.own != nil || l.places != nil {
		l.wanted(fx)
	}
	return nil
}

// waitersBefore is how many wait for a holder before a caller that comes, as far as is
// known. If the store says later that there are more, failSurplus refuses the caller.
func (l *lock) waitersBefore(w *Waiter) int {
	n := int(l.n)
	if l.phase != acquiring || l.acq != nil && l.acq.contended {
		return n
	}
	places := l.alone == 0 && (l.acq == nil || l.acq.failed == nil)
	n = max(0, n-int(l.asking)) // these ask the store for a lock that may be free
	switch {
	case !places:
		return n
	case w.Terms.Kind == driver.Permit:
		// All permits that this process does not have may be free.
		return min(n, max(0, int(l.n)+len(l.places.held())-w.Terms.AtMost))
	default:
		return 0 // all of them may get places at the same time
	}
}

// queueFull is the error of a caller that has as many waiters before it as its MaxWaiters
// allows.
func queueFull(w *Waiter) error {
	return fmt.Errorf("%w: %q has %d: %w", ErrQueueFull, w.lock.key, w.Terms.MaxWaiters, ErrHeld)
}

// step is what a waiter has to do.
type step struct {
	action action
	err    error                 // of finish and leave
	until  clock.Instant         // of sleep; zero: no bound
	since  clock.Instant         // of watch
	try    *try                  // of ask
	line   driver.AcquireRequest // of stand
}

type action int8

const (
	sleep  action = iota // until it is woken
	finish               // it has the lock, or err says why it failed
	leave                // give up, with err
	ask                  // send the request of the try
	stand                // ask the store whether it may wait
	watch                // get the announcements of releases from now on
)

// look is the event that a waiter looks at the lock.
func (l *lock) look(w *Waiter, now, deadline clock.Instant, fx *effects) step {
	s, acq := step{}, l.acq
	if w.Terms.Wait == 0 && l.asking > 0 && !acq.contended {
		// It does not wait for a holder, but for the answer to the try before it.
		deadline = max(deadline, acq.asked.Add(answerWait))
	}
	switch {
	case w.state == granted:
		return step{action: finish}
	case w.state == gone:
		// Granted, and lost again before the waiter woke.
		return step{action: finish, err: w.lostError()}
	case w.state == failed:
		return step{action: finish, err: *w.err}
	case w.marks&refused != 0 && w.marks&blind == 0:
		return step{action: leave, err: l.isHeld(w)}
	case l.phase == held && w.Terms.Line != driver.InTurn:
		if s, stands := l.stands(w, now, fx); stands {
			return s
		}
		s.until = l.acq.askAt
	case l.phase != acquiring, (l.first != w || l.asking > 0) && l.nextToAsk() != w:
		// Not this waiter's to try. An event that changes this wakes it.
	case l.places != nil && l.awaitsRelease(w):
		// It may have been refused because of the place that this process is giving back. The
		// answer to the release comes first.
	case w.Terms.Wait == 0 && w.marks&refused == 0 && l.refusedNow(w, now):
		w.marks |= waited
		return step{action: leave, err: l.isHeld(w)}
	case l.awaitsDecline(w, now, deadline):
		s.until = l.declined.Add(declineWait)
	case acq == nil || now >= acq.tryAt || w.marks&refused != 0 || w.Terms.Line != driver.InTurn && w.attempts == 0:
		s.action, s.try = ask, l.try(w, now, deadline)
		fx.asks = true
		if w.Terms.Kind == driver.Permit {
			fx.next = l.nextToAsk()
		}
		return s
	case acq.contended && acq.unwatch == nil:
		// The store reports every change since the try was sent, so nothing is missed between.
		return step{action: watch, since: acq.refusedAt}
	default:
		s.until = acq.tryAt
	}
	if deadline != 0 && (s.until == 0 || deadline < s.until) {
		s.until = deadline
	}
	if deadline != 0 && now >= deadline {
		return step{action: leave, err: l.timedOut(w, now)}
	}
	w.marks |= waited
	if w.wakeup == nil {
		w.wakeup = l.shard.table.newWakeup()
	}
	return s
}

// timedOut says why a wait ended without success: because the lock was held,
// or because the store could not say.
func (l *lock) timedOut(w *Waiter, now clock.Instant) error {
	switch {
	case l.asking > 0 && !l.acq.contended && now >= l.acq.asked.Add(answerWait):
		return fmt.Errorf("%w: %q: %w", driver.ErrUnavailable, l.key, errNoAnswer)
	case l.acq != nil && l.acq.failed != nil:
		return fmt.Errorf("%w: %q: %w", driver.ErrUnavailable, l.key, l.acq.failed)
	case w.Terms.Wait == 0 && (l.phase == releasing || l.acq != nil && l.acq.blind && l.places.releasing()):
		return fmt.Errorf("%w: %q: %w", driver.ErrUnavailable, l.key, errReleasing)
	}
	return l.isHeld(w)
}

// isHeld says what keeps a waiter out: an exclusive holder, or the holders of places.
func (l *lock) isHeld(w *Waiter) error {
	if w.Terms.Kind == driver.Permit && l.phase != held && l.phase != releasing &&
		(l.acq == nil || l.acq.full || !l.acq.contended) {
		return fmt.Errorf("%w: %q has %d", ErrFull, l.key, w.Terms.AtMost)
	}
	if l.acq != nil && l.acq.note != "" && w.Terms.Wait <= l.acq.noted {
		return fmt.Errorf("%w: %q; %s", ErrHeld, l.key, l.acq.note)
	}
	return fmt.Errorf("%w: %q", ErrHeld, l.key)
}

// fail gives all waiters the same error, except waiters with the mark, which get separate
// answers: the store would answer each of them like the first, one after the other.
func (l *lock) fail(err error, except marks, fx *effects) {
	var next *Waiter
	for w := l.first; w != nil; w = next {
		next = w.next
		if w.marks&except != 0 {
			continue
		}
		l.failOne(w, err, fx)
	}
}

// failOne gives one waiter an error.
func (l *lock) failOne(w *Waiter, err error, fx *effects) {
	l.remove(w)
	l.stray(w)
	w.fail(fmt.Errorf("%w: %q", err, l.key))
	w.next, fx.failed = fx.failed, w
}

// stray notes that a waiter has left the queue: its try that is on its way belongs to
// the queue from now on.
func (l *lock) stray(w *Waiter) {
	if w.marks&asking != 0 {
		w.marks &^= asking
		l.strays++
	}
}

// close is the event that the Table closes.
func (l *lock) close(fx *effects) {
	l.fail(ErrClosed, 0, fx)
	switch {
	case l.phase == held && l.own.holder == nil:
		l.giveUp(l.own, fx) // it was kept for a waiter that has just failed
	case l.phase == acquiring:
		l.proceed(fx)
	}
}

// abandon is the event that a waiter gives up with err. It returns the error for its
// caller, and whether the waiter has got the lock meanwhile, and has to release it.
func (l *lock) abandon(w *Waiter, err error, fx *effects) (hasIt bool, _ error) {
	l.stray(w)
	switch w.state {
	case granted:
		return true, err
	case failed:
		return false, *w.err
	case waiting:
		l.remove(w)
		w.state = gone
		if l.phase == acquiring {
			l.proceed(fx) // with another first waiter, or none
		} else if l.listed {
			l.declines(fx)
		}
	case gone:
		// Granted and lost before it looked: nothing is held.
	}
	return false, err
}

// signal is the event that the store announces that the lock may be free, with the
// list of the lockers that wait for it.
func (l *lock) signal(now clock.Instant, s driver.Signal, fx *effects) {
	if l.phase == held && s.Next != "" {
		l.sees(s.Next) // the list of the release that has offered us the lock
	}
	if l.phase == held || l.phase == idle {
		return // no caller waits, nor will the request that is under way
	}
	kind := driver.Exclusive
	if l.first != nil {
		kind = l.first.Terms.Kind
	}
	if s.Next != "" {
		l.sees(s.Next)
	}
	l.acquisition().plan(now, s, l.shard.table.ID, kind, l.asking > 0)
	if l.phase == acquiring && l.asking == 0 {
		fx.look = l.first
	}
}

// sees notes how far the farthest locker is that takes turns, this one included (turnOver).
// Lists without it come in between, so it is forgotten slowly.
func (l *lock) sees(list string) {
	l.far = max(farthest(list), farthest(l.shard.table.name(driver.Exclusive, true)), l.far-l.far/8)
}

// outlive ends an ownership after the end of its lease: the watchdog was too late to end
// it, or its release has no answer yet and no caller waits for that any more.
func (l *lock) outlive(now clock.Instant, fx *effects) {
	if l.phase == held {
		l.own.expire(now, fx)
		return
	}
	l.own = nil
	if l.acq != nil {
		l.acq.tryAt = 0
	}
	l.proceed(fx)
}

// last is the last waiter of a queue that is not empty.
func (l *lock) last() *Waiter { return l.first.prev }

// push puts a waiter at the end of the queue.
func (l *lock) push(w *Waiter) {
	w.lock = l
	if l.first == nil {
		l.first = w
	} else {
		w.prev = l.last()
		w.prev.next = w
	}
	l.first.prev = w
	l.n++
	if !w.Terms.Kind.Place() {
		l.alone++
	}
}

// remove takes a waiter out of the queue.
func (l *lock) remove(w *Waiter) {
	if w == l.first {
		l.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else if l.first != nil {
		l.first.prev = w.prev
	}
	w.prev, w.next = nil, nil
	l.n--
	if !w.Terms.Kind.Place() {
		l.alone--
	}
}
