package lock

import (
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
)

// Terms are what a caller asks for. They do not change.
type Terms struct {
	// Kind says which other callers can hold the lock at the same time.
	Kind driver.Kind
	// AtMost is how many permits there are, for the kind Permit.
	AtMost int
	// Lease is how long the store keeps the lock without a renewal.
	Lease time.Duration
	// Fixed says that the lease is not renewed.
	Fixed bool
	// WillFix says that [Table.Fix] is going to make the lease a fixed one: then it is
	// one caller's alone.
	WillFix bool
	// Whole says that the caller begins only when at least two thirds of the lease are left, as
	// after a hand-off: not with an offer, nor with a grant after a late reply.
	Whole bool
	// Wait is how long the caller waits for the holder: zero not at all, negative
	// until its context ends.
	Wait time.Duration
	// MaxHold, unless zero, is for how long the caller may hold the lock.
	MaxHold time.Duration
	// MaxWaiters, unless zero, is how many callers may wait for the key.
	MaxWaiters int
	// Line says where the caller stands among the waiting callers. Any other line than
	// [driver.InTurn] is for exclusive callers that wait, on a store with [driver.Turns].
	// A caller that is [driver.Newest] is Attentive, too.
	Line driver.Line
	// Attentive says that the store is to tell the process at once what happens to the
	// lock ([driver.Turns]).
	Attentive bool
}

// Holder receives callbacks when a hold of its waiters changes. Its methods are called
// without a mutex.
type Holder interface {
	// Lost says that the lease of w cannot be trusted any more: cause is [ErrLost],
	// [ErrMaxHold] or [ErrClosed], and err the error of the last renewal. A reason of zero
	// says that the loss was reported before, as [MaxHold].
	Lost(w *Waiter, reason Reason, cause, err error)
	// Renewed says how a renewal of w's lease by the Table ended, if that is
	// [Table.Observed]. The result of a query by a caller ([Table.Confirm]) goes to that
	// caller alone.
	Renewed(w *Waiter, err error, took time.Duration)
	// Wanted says that another process or a caller of this one waits for the lock of w,
	// once after each [Table.Heed].
	Wanted(w *Waiter)
	// Superseded says that a newer caller waits for the lock of w, which is [driver.Newest]:
	// once. The lease stays valid, and is renewed.
	Superseded(w *Waiter)
	// Over says that the last hold of a waiter was given up, before the release is
	// sent. Unless it is nil, cause says why the lease had been lost by then; Lost
	// may not have been called yet.
	Over(cause error)
}

// Waiter is a caller of a lock: first it waits in the queue of the key, then it
// holds the lock. Its owner sets the exported fields before [Table.Acquire]. The
// others are guarded by the mutex of the lock's shard, or are the caller's own until
// it has the lock.
type Waiter struct {
	Terms  *Terms
	Holder Holder

	lock       *lock
	prev, next *Waiter
	wakeup     chan wakeup // made when the waiter has to sleep

	own   *ownership
	token int64 // of the hold; before it the number of a caller that is not InTurn, see number
	since clock.Instant
	// err is why the waiter failed; nil: it has not. Of a hold it is ErrLost, ErrMaxHold,
	// ErrClosed or driver.ErrNotOwner when its lease cannot be trusted any more. It is a
	// pointer because there is one in each lease.
	err      *error
	holds    int32
	attempts uint16 // as far as it goes
	state    state
	marks    marks
}

// marks say more of a waiter. They are bits because there are some in each lease.
type marks uint8

const (
	waited     marks = 1 << iota // for observers: the lock was not free at once
	asking                       // its try is on its way
	refused                      // it does not wait, and its last try was refused
	blind                        // when that try was sent, the release of a place of this process was on its way
	heeds                        // it holds the lock, and its holder is to be notified when others wait
	superseded                   // it holds the lock, and its holder was notified that a newer caller waits
)

// state is where a waiter is.
type state int8

const (
	waiting state = iota
	failed
	granted
	gone // it has left the queue, or its hold was released or lost
)

// Key returns the key of the lock.
func (w *Waiter) Key() string { return w.lock.key }

// number returns the number of a caller that is not InTurn. A caller that is Newest and has no
// number has its order among the callers of this process.
func (w *Waiter) number() (number, order int64) {
	if w.token < 0 {
		return 0, -w.token
	}
	return w.token, 0
}

// Token returns the fencing token of the hold.
func (w *Waiter) Token() int64 { return w.token }

// Since returns when the lock was granted.
func (w *Waiter) Since() clock.Instant { return w.since }

// Owner returns the text that identifies the holder in the store.
func (w *Waiter) Owner() string { return w.own.owner() }

// Attempts returns how many requests the caller itself sent to the store.
func (w *Waiter) Attempts() int { return int(w.attempts) }

// Contended reports whether the lock was not free at once.
func (w *Waiter) Contended() bool { return w.marks&waited != 0 }

// fail ends the wait of a waiter. The caller takes it out of the queue.
func (w *Waiter) fail(err error) { w.state, w.err = failed, &err }

// bound is when a hold with a MaxHold ends.
func (w *Waiter) bound() clock.Instant { return w.since.Add(w.Terms.MaxHold) }

// lostError is what a caller gets for a hold that was lost.
func (w *Waiter) lostError() error {
	if *w.err == ErrMaxHold { //nolint:errorlint // a sentinel of ours, never wrapped here
		return fmt.Errorf("%w: %q", ErrMaxHold, w.lock.key)
	}
	if errors.Is(*w.err, driver.ErrNotOwner) {
		return fmt.Errorf("%w: %q: %w", ErrLost, w.lock.key, driver.ErrNotOwner)
	}
	return fmt.Errorf("%w: %q", ErrLost, w.lock.key)
}

// queue has the waiters of a lock, first in, first out. Only the first waiter talks to the store,
// on its own goroutine. Where several permits may be free, the waiters after it do so at the same
// time (permits.go).
//
// Invariant: n is the number of waiters, alone the number of those that want the lock for
// themselves, and each waiter is in the state waiting.
type queue struct {
	first *Waiter // its prev is the last
	n     int32
	alone int32
}

// last is the last waiter of a queue that is not empty.
func (q *queue) last() *Waiter { return q.first.prev }

// push puts a waiter at the end.
func (q *queue) push(w *Waiter) {
	if q.first == nil {
		q.first = w
	} else {
		w.prev = q.last()
		w.prev.next = w
	}
	q.first.prev = w
	q.n++
	if !w.Terms.Kind.Place() {
		q.alone++
	}
}

// pushFirst puts a waiter before all others, which wants the lock for itself.
func (q *queue) pushFirst(w *Waiter) {
	first := q.first
	if first == nil {
		q.push(w)
		return
	}
	w.next, w.prev = first, first.prev
	first.prev, q.first = w, w
	q.n++
	q.alone++
}

// remove takes a waiter out.
func (q *queue) remove(w *Waiter) {
	if w == q.first {
		q.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else if q.first != nil {
		q.first.prev = w.prev
	}
	w.prev, w.next = nil, nil
	q.n--
	if !w.Terms.Kind.Place() {
		q.alone--
	}
}

// wakeup is what wakes a waiter.
type wakeup int8

const (
	// lookAgain: something has changed that concerns it.
	lookAgain wakeup = iota
	// handedOff: it holds the lock. It is the last wakeup that a waiter gets.
	handedOff
)

// wake wakes a waiter. One wakeup in the channel is enough, since after it the waiter
// looks at everything; a waiter that has not slept yet, and has no channel, looks before
// it does.
func wake(c chan wakeup, how wakeup) {
	if c == nil {
		return
	}
	select {
	case c <- how:
	default:
	}
}

// names are the names of the process in lists of waiting lockers, by the kind of hold.
type names struct {
	trip   time.Duration // to the store and back, when they were made
	of     [driver.Permit + 1]driver.Waiter
	offers driver.Waiter // of a process that takes offers
}

func namesOf(id string, need time.Duration) *names {
	n := &names{}
	for kind := range n.of {
		n.of[kind] = driver.NewWaiter(id, driver.Kind(kind), need) //nolint:gosec // three kinds
	}
	n.offers = n.of[driver.Exclusive].TakingOffers()
	return n
}

// name returns the name of the process for a list of waiting lockers. For a store that
// reserves the lock for lockers that wait, the name says how long this process may take: a
// message to it and a request from it are a round trip, and there is time for a pause. The
// store is asked how long that is where others are known to wait, and until it has measured
// a round trip.
func (t *Table) name(kind driver.Kind, contended bool) driver.Waiter {
	n := t.owners.names.Load()
	if t.store.turns == nil || n.trip != 0 && !contended {
		return n.of[kind]
	}
	if trip := t.store.turns.RoundTrip(); n.trip == 0 || trip > n.trip+n.trip/8 || trip < n.trip-n.trip/8 {
		n = namesOf(t.ID, 3*trip+2*time.Millisecond)
		n.trip = trip
		t.owners.names.Store(n)
	}
	return n.of[kind]
}
