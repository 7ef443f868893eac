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
// waits for it.
//
// The events of the state machine are among the methods of this file, and of the files that
// the package comment names with it. The methods are called with the shard's mutex held, and
// leave it held.
type lock struct {
	shard *shard
	key   string

	phase   phase
	waiters queue
	own     *ownership   // in the phases held and releasing
	places  *places      // nil while the process has none, and releases none
	acq     *acquisition // nil while there is nothing to remember of tries
	listing listing
	away    absence // how long the turns of others take

	surplus bool // the refusal of the first may also refuse callers after it
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
	l.phase, fx.wakes.look = idle, l.waiters.first
	if l.listing.in {
		l.declines(fx)
	}
	if l.asking() == 0 && l.acq != nil && l.acq.offer.named != 0 && (l.waiters.first == nil || l.waiters.first.Terms.Kind.Place()) {
		fx.sends.passOn, l.acq.offer.named = l.acq.offer.named, 0
	}
	switch {
	case l.asking() > 0:
		l.phase, fx.wakes.look = acquiring, nil // apply looks who may ask
	case l.waiters.first != nil:
		l.phase = acquiring
	case l.acq != nil && l.places != nil:
		// No call counts from here on, so the result of the last try must not keep the next caller
		// from asking.
		l.forgetAcquisition()
	}
}

// join handles a new caller: queue it, let it share an existing hold, or return an
// error. For an exclusive caller that waits now may be zero, and ahead always.
func (l *lock) join(w *Waiter, now clock.Instant, ahead time.Duration, fx *effects) error {
	if w.Terms.Wait == 0 && l.own != nil && now >= l.own.lease.deadline() {
		// A caller that does not wait must not be refused because of a lease that is over: if
		// the process was stopped, or its release gets no answer, others may have had the lock
		// since.
		l.outlive(now, fx)
	}
	switch most := w.Terms.MaxWaiters; {
	case l.shard.table.life.closed.Load():
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
	case w.Terms.Wait == 0 && l.phase == releasing && (l.waiters.first == nil || w.Terms.Kind.Place() && l.waiters.alone == 0):
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
		l.surplus = l.surplus || most > 0 && int(l.waiters.n) >= most
	}
	w.lock = l
	l.waiters.push(w)
	if l.own != nil || l.places != nil {
		l.wanted(fx)
	}
	return nil
}

// waitersBefore is how many wait for a holder before a caller that comes, as far as is
// known. If the store says later that there are more, failSurplus refuses the caller.
func (l *lock) waitersBefore(w *Waiter) int {
	n := int(l.waiters.n)
	if l.phase != acquiring || l.acq != nil && l.acq.refusal.contended {
		return n
	}
	places := l.waiters.alone == 0 && (l.acq == nil || l.acq.outage.why == nil)
	n = max(0, n-int(l.asking())) // these ask the store for a lock that may be free
	switch {
	case !places:
		return n
	case w.Terms.Kind == driver.Permit:
		// All permits that this process does not have may be free.
		return min(n, max(0, int(l.waiters.n)+len(l.places.held())-w.Terms.AtMost))
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
)

// look is the event that a waiter looks at the lock.
func (l *lock) look(w *Waiter, now, deadline clock.Instant, fx *effects) step {
	s, acq := step{}, l.acq
	if w.Terms.Wait == 0 && l.asking() > 0 && !acq.refusal.contended {
		// It does not wait for a holder, but for the answer to the try before it.
		deadline = max(deadline, acq.tries.asked.Add(answerWait))
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
		s.until = l.acq.next.askAt
	case l.phase != acquiring, (l.waiters.first != w || l.asking() > 0) && l.nextToAsk() != w:
		// Not this waiter's to try. An event that changes this wakes it.
	case l.places != nil && l.awaitsRelease(w):
		// It may have been refused because of the place that this process is giving back. The
		// answer to the release comes first.
	case w.Terms.Wait == 0 && w.marks&refused == 0 && l.refusedNow(w, now):
		w.marks |= waited
		return step{action: leave, err: l.isHeld(w)}
	case l.listing.leaving > 0 && l.awaitsDecline(w, now, deadline):
		s.until = l.listing.leftAt.Add(declineWait)
	case acq == nil || now >= acq.next.tryAt || w.marks&refused != 0 || w.Terms.Line != driver.InTurn && w.attempts == 0:
		s.action, s.try = ask, l.try(w, now, deadline)
		fx.asks = true
		if w.Terms.Kind == driver.Permit {
			fx.wakes.next = l.nextToAsk()
		}
		return s
	default:
		s.until = acq.next.tryAt
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
	case l.asking() > 0 && !l.acq.refusal.contended && now >= l.acq.tries.asked.Add(answerWait):
		return fmt.Errorf("%w: %q: %w", driver.ErrUnavailable, l.key, errNoAnswer)
	case l.acq != nil && l.acq.outage.why != nil:
		return fmt.Errorf("%w: %q: %w", driver.ErrUnavailable, l.key, l.acq.outage.why)
	case w.Terms.Wait == 0 && (l.phase == releasing || l.acq != nil && l.acq.refusal.blind && l.places.releasing()):
		return fmt.Errorf("%w: %q: %w", driver.ErrUnavailable, l.key, errReleasing)
	}
	return l.isHeld(w)
}

// isHeld says what keeps a waiter out: an exclusive holder, or the holders of places.
func (l *lock) isHeld(w *Waiter) error {
	if w.Terms.Kind == driver.Permit && l.phase != held && l.phase != releasing &&
		(l.acq == nil || l.acq.refusal.full || !l.acq.refusal.contended) {
		return fmt.Errorf("%w: %q has %d", ErrFull, l.key, w.Terms.AtMost)
	}
	if l.acq != nil && l.acq.refusal.note != "" && w.Terms.Wait <= l.acq.refusal.noted {
		return fmt.Errorf("%w: %q; %s", ErrHeld, l.key, l.acq.refusal.note)
	}
	return fmt.Errorf("%w: %q", ErrHeld, l.key)
}

// fail gives all waiters the same error, except waiters with the mark, which get separate
// answers: the store would answer each of them like the first, one after the other.
func (l *lock) fail(err error, except marks, fx *effects) {
	var next *Waiter
	for w := l.waiters.first; w != nil; w = next {
		next = w.next
		if w.marks&except != 0 {
			continue
		}
		l.failOne(w, err, fx)
	}
}

// failOne gives one waiter an error.
func (l *lock) failOne(w *Waiter, err error, fx *effects) {
	l.waiters.remove(w)
	l.stray(w)
	w.fail(fmt.Errorf("%w: %q", err, l.key))
	w.next, fx.wakes.failed = fx.wakes.failed, w
}

// stray notes that a waiter has left the queue: its try that is on its way belongs to
// the queue from now on.
func (l *lock) stray(w *Waiter) {
	if w.marks&asking != 0 {
		w.marks &^= asking
		l.acq.tries.strays++
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
		l.waiters.remove(w)
		w.state = gone
		if l.phase == acquiring {
			l.proceed(fx) // with another first waiter, or none
		} else if l.listing.in {
			l.declines(fx)
		}
	case gone:
		// Granted and lost before it looked: nothing is held.
	}
	return false, err
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
		l.acq.next.tryAt = 0
	}
	l.proceed(fx)
}

// asking is how many tries are on their way.
func (l *lock) asking() int32 {
	if l.acq == nil {
		return 0
	}
	return l.acq.tries.n
}

// acquisition returns the lock's acquisition, a new one if it has none. Called with
// the shard's mutex held.
func (l *lock) acquisition() *acquisition {
	if l.acq != nil {
		return l.acq
	}
	sh := l.shard
	if n := len(sh.spare); n > 0 {
		l.acq = sh.spare[n-1]
		sh.spare = sh.spare[:n-1]
	} else {
		l.acq = new(acquisition)
	}
	return l.acq
}

// maxSpare is how many acquisitions a shard keeps for its next keys.
const maxSpare = 16

// forgetAcquisition gives the acquisition up. Called with the shard's mutex held.
func (l *lock) forgetAcquisition() {
	if sh := l.shard; len(sh.spare) < maxSpare {
		*l.acq = acquisition{}
		sh.spare = append(sh.spare, l.acq)
	}
	l.acq = nil
}
