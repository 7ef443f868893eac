package pglock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/inflight"
	"github.com/interlock-go/interlock/core/internal/pgpool"
)

const (
	// maxTries is how often a request is sent again after a failed try, unless it is
	// stubborn.
	maxTries = 3
	// maxCollisions is how often it is sent again because another transaction was in the
	// way, or had locked the row for too long.
	maxCollisions = 20
	// firstPause is the pause before the second try; it doubles.
	firstPause = 10 * time.Millisecond
	maxPause   = 200 * time.Millisecond
)

// request is one request on its way: sent, sent again where that helps, and awaited by a
// caller, which may leave.
type request struct {
	store *Store
	lane  *lane
	index int // of the lease that it renews, in its batch

	key, owner string
	from       string        // the owner that hands the lock on; empty: none
	waiter     driver.Waiter // that it may enter into the list
	rule       rule          // carries it out on the record of the key
	lasts      bool          // its answer mostly waits for the disk
	lease      time.Duration // that it asks for

	deadline time.Time // when nothing is sent again; zero: maxTries decides
	asks     bool      // for something new: of no use without its caller
	stubborn bool      // to be sent again until the deadline
	once     bool      // not to be sent again when it has failed
	late     func()    // called with the outcome if the caller has left; may be nil

	alone      bool // it shares no statement
	tries      int
	collisions int
	pause      time.Duration

	answer    *ruling
	lag       time.Duration // the lease of a grant began as much before the request was sent
	err       error         // in place of the answer
	sent      time.Time     // the first try
	ambiguous bool          // a try may have been, or may yet be, executed

	caller inflight.Caller
	done   chan *request
}

// send has the request sent with the next statement.
func (r *request) send() { r.lane.submit(r) }

// tried takes the outcome of a try. sent says that the statement has left for the server.
func (r *request) tried(err error, sent bool) {
	if err == nil && r.answer != nil {
		r.finish(nil)
		return
	}
	if err == nil {
		err = errCollided
	}
	f := fateOf(err, sent)
	again := false
	switch f {
	case refused:
		// One request can be the reason for which a statement of many is refused.
		again = !r.alone && pgpool.MayBeOnes(err)
		r.alone = true
	case collided:
		r.alone = r.alone || isLockTimeout(err) // it is not known which row it was
		r.collisions++
		again = r.collisions < maxCollisions || r.stubborn && !r.deadline.IsZero()
	case notReady:
		// Only a stubborn request waits for the server; others let their caller decide.
		again = r.stubborn && !r.once
		r.tries++
	case unsent, unknown:
		r.ambiguous = r.ambiguous || f == unknown
		r.alone = r.alone || pgpool.MayBeOnes(err) // a damaged row fails the requests in the same statement
		r.tries++
		again = (r.stubborn && !r.deadline.IsZero() || r.tries < maxTries) && !r.once
	}
	pause := r.pauseAfter(f, err)
	if !again || !r.repeats() && !r.deadline.IsZero() && time.Now().Add(pause).After(r.deadline) || r.store.work.Closed() {
		r.finish(wrap(err, f))
		return
	}
	if pause == 0 {
		r.send()
		return
	}
	time.AfterFunc(pause, r.send)
}

// pauseAfter is for how long a request that is sent again waits.
func (r *request) pauseAfter(f fate, err error) time.Duration {
	if f == refused || errors.Is(err, errCollided) && r.collisions < maxTries {
		return 0
	}
	r.pause = min(max(2*r.pause, firstPause), maxPause)
	return r.pause/2 + rand.N(r.pause) // two that have collided must not do so again
}

// finish ends the request: it wakes the caller or, if the caller has left, calls late.
func (r *request) finish(err error) {
	r.err = err
	if r.caller.Serve() {
		r.done <- r
		return
	}
	if r.late != nil {
		r.late()
	}
}

// wait waits for the outcome, but not longer than ctx or the deadline allow. It reports
// false when the caller has to leave; the request goes on.
func (r *request) wait(ctx context.Context, deadline time.Time) bool {
	_, ok := inflight.Wait(ctx, deadline, &r.caller, r.done)
	return ok
}

// unwanted reports whether a request that waits for a statement is to be finished instead
// of sent. A request that asks for something new is, once its caller has left: its lock
// would have to be given up again. A release is, once its time has ended: its caller then
// has it done later.
func (r *request) unwanted(now time.Time) bool {
	return r.asks && r.caller.Left() || !r.repeats() && !r.deadline.IsZero() && now.After(r.deadline)
}

// repeats reports whether the next try is the second of a release. It is sent also if the first
// took so long that the deadline has passed: a try over a connection that a gateway has forgotten
// lasts as long as a try may.
func (r *request) repeats() bool { return r.stubborn && r.tries == 1 }

// dismiss finishes a request that is unwanted.
func (r *request) dismiss() {
	if r.ambiguous {
		r.finish(errNoAnswer)
		return
	}
	r.finish(errUnwanted)
}

// checkTexts returns an error for a text that PostgreSQL cannot have. Other requests would
// fail together with this one.
func checkTexts(all ...string) error {
	for _, s := range all {
		if strings.IndexByte(s, 0) >= 0 || !utf8.ValidString(s) {
			return fmt.Errorf("%w: owner or waiting locker %q: PostgreSQL takes valid UTF-8 without zero bytes", driver.ErrConfig, s)
		}
	}
	return nil
}
