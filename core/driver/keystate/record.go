// Package keystate has the rules of a lock: the next holder, the order of turns, and the lockers
// to call. A [Record] is the state of one key in a store. Its methods carry requests out, and
// return the reply and the [Notices] that follow. They are pure: a record reads no clock, takes
// no mutex and talks to no store. Whoever keeps the record decides when a request arrives.
//
// Package memstore keeps records in a map. The scripts of the store on Redis have the same rules
// in another language, and a test of random requests holds them against this package.
//
// Instants are times of the store's clock. It may be set back.
package keystate

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

const (
	// linger is how long the list of waiting lockers is kept after the last place has
	// ended, and how long a locker waits at most until it asks for a place again.
	linger = time.Second
	// barrier is how long an exclusive request keeps new places out at most.
	barrier = 1500 * time.Millisecond
	// onlyFor is for how long the only waiter stays one without asking again.
	onlyFor = 1500 * time.Millisecond
	// room is the number of tokens left out after each token, while the clock lags the tokens.
	room = 15
)

// Record is what a store knows about the lock of one key. The zero value is a key that was never
// locked. It is not safe for concurrent use.
type Record struct {
	owner    string    // the exclusive holder; empty: there is none
	places   []place   // of the other holders, in the order of their grants; with an owner there are none
	token    int64     // the last that was minted or reported
	next     int64     // the token of the next offer; zero: it is a time, as all others are
	expires  time.Time // when the last lease ends, or ended; meaningless while reserved stands
	waiting  []waiting // in the order of their turns; each locker once
	barrier  time.Time // while owners have places: until when an exclusive request keeps new places out
	reserved reservation
	line     line
	unknown  map[string]json.RawMessage // the fields of the text that this version does not know
}

// Notices are the effects of a request on other owners and lockers.
type Notices struct {
	// Freed says that the lock, or a place, became free. The calls then are an offer, if there is one, and turns, in their order.
	Freed bool
	// Calls are the calls to lockers. The store may fail to make any of them.
	Calls []Call
	// Noted is for how long the store has to note that the former owner of the request has handed the lock
	// on ([Record.Move]); zero for none.
	Noted time.Duration
	// Revoked is for how long the store has to note that an operator has released the lock of the owner of the
	// request ([Record.Release]); zero for none.
	Revoked time.Duration
}

// At brings the record up to an instant: leases, places and turns that have ended are gone. The
// other methods call it.
func (r *Record) At(now time.Time) {
	if r.owner != "" && !now.Before(r.expires) {
		r.owner, r.waiting = "", nil
	}
	r.setBack(now)
	r.places = slices.DeleteFunc(r.places, func(p place) bool { return !now.Before(p.ends) })
	switch {
	case r.reserved.stands(now):
	case r.reserved.lasts > 0:
		r.reserved, r.waiting = reservation{}, nil
	case r.Free() && now.Sub(r.expires) >= linger:
		r.waiting, r.barrier = nil, time.Time{}
	}
}

// setBack sees to it that nothing is kept for longer than it was to be kept, where the store's
// clock has been set back.
func (r *Record) setBack(now time.Time) {
	if r.reserved.since.After(now) {
		r.reserved.since = now
	}
	if r.barrier.Sub(now) > barrier {
		r.barrier = now.Add(barrier)
	}
	if r.line.since.After(now) {
		r.line.since = now
	}
	if r.line.until.Sub(now) > onlyFor {
		r.line.only = ""
	}
}

// Free reports whether there is no holder.
func (r *Record) Free() bool { return r.owner == "" && len(r.places) == 0 }

// Holder returns the exclusive owner and its token, or else the owner that has had its place for the
// longest time.
func (r *Record) Holder() (owner string, token int64, ok bool) {
	switch {
	case r.owner != "":
		return r.owner, r.token, true
	case len(r.places) > 0:
		return r.places[0].owner, r.places[0].token, true
	default:
		return "", 0, false
	}
}

// Waiting returns the list of waiting lockers in the order of their turns, with the lockers that were
// called to a place and have not come yet.
func (r *Record) Waiting() driver.Waiters {
	all := make([]driver.Waiter, len(r.waiting))
	for i, w := range r.waiting {
		if all[i] = w.Waiter; w.called {
			all[i] = w.Calling()
		}
	}
	return driver.List(all...)
}

// Clone returns a copy.
func (r *Record) Clone() *Record {
	c := *r
	c.places, c.waiting = slices.Clone(r.places), slices.Clone(r.waiting)
	c.line.came = slices.Clone(r.line.came)
	return &c
}

// Ended returns when the last lease ended or will end.
func (r *Record) Ended() time.Time { return r.expires }

// Acquire carries out [driver.Store.Acquire], unless the request has a From ([Record.Move]). The reply
// lacks what only a client knows.
func (r *Record) Acquire(req driver.AcquireRequest, now time.Time) (driver.Reply, Notices) {
	return r.try(req, (*Record).ask, now)
}

// Stand carries out [driver.Turns.Stand].
func (r *Record) Stand(req driver.AcquireRequest, now time.Time) (driver.Reply, Notices) {
	return r.try(req, (*Record).stand, now)
}

func (r *Record) try(
	req driver.AcquireRequest, ask func(*Record, driver.AcquireRequest, time.Time) driver.Reply, now time.Time,
) (rep driver.Reply, n Notices) {
	r.At(now)
	comes := req.Line == driver.Newest && req.Number == 0 && !r.holds(req.Owner)
	if r.comes(&req, now) {
		return driver.Reply{Out: true}, n
	}
	news := req.Owner != "" && (r.news(req.Waiter) || comes) // else the locker that asks has the lock itself
	if first := r.displaced(req.Waiter.ID()); comes && first != "" {
		n.call(first, driver.Call{What: driver.Displaced})
	}
	if rep = ask(r, req, now); !rep.Granted && news {
		r.want(&n)
	}
	return rep, n
}

// ask makes a try.
func (r *Record) ask(req driver.AcquireRequest, now time.Time) driver.Reply {
	if req.Kind.Place() {
		return r.enter(req, now)
	}
	return r.take(req, now)
}

// take makes a try to get the lock for an exclusive owner.
func (r *Record) take(req driver.AcquireRequest, now time.Time) driver.Reply {
	switch {
	case r.owner == req.Owner:
		return r.grant(req, now)
	case !r.Free():
		return r.refusedByHolders(req, now)
	case r.reserved.stands(now) && r.reserved.offer == "" && req.Line == driver.Newest:
		r.reserved = reservation{}
		r.unlist(req.Waiter.ID())
	case r.reserved.stands(now):
		if left := r.passes(req.Waiter.ID(), req.Offer, now); left > 0 {
			return r.refuse(req, driver.Reply{Holder: r.reserved.offer, Token: r.reserved.token, TTL: left}, now)
		}
		r.reserved = reservation{}
	default:
		r.unlist(req.Waiter.ID())
	}
	r.owner, r.expires, r.barrier = req.Owner, now.Add(req.TTL), time.Time{}
	r.uncall()
	if req.Line == driver.OneWaiter {
		r.alone(req.Waiter.ID()) // not if the request is repeated: another caller of the locker may wait by now
	}
	r.mint(now, 1)
	return r.grant(req, now)
}

// refusedByHolders makes the reply to a request for an exclusive owner while others hold the lock.
func (r *Record) refusedByHolders(req driver.AcquireRequest, now time.Time) driver.Reply {
	if r.owner != "" {
		return r.refuse(req, driver.Reply{Holder: r.owner, Token: r.token, TTL: r.expires.Sub(now)}, now)
	}
	rep := r.refuse(req, driver.Reply{Holder: r.holders(), TTL: min(r.expires.Sub(now), linger)}, now)
	if until := now.Add(min(req.Left, barrier)); req.Waiter != "" && !rep.Out && req.Left > 0 && until.After(r.barrier) {
		r.barrier = until
	}
	return rep
}

// Renew carries out one renewal of [driver.Store.Renew].
func (r *Record) Renew(renewal driver.Renewal, now time.Time) (contended bool, err error) {
	r.At(now)
	if renewal.Kind.Place() {
		err := r.stay(renewal, now)
		return err == nil && len(r.waiting) > 0, err
	}
	if err := r.denied(renewal.Owner, now); err != nil {
		return false, err
	}
	if renewal.TTL <= 0 && r.owner == "" {
		return len(r.waiting) > 1, nil
	}
	r.accept(renewal.Owner, renewal.TTL, now)
	r.last(now.Add(renewal.TTL))
	return len(r.waiting) > 0, nil
}

// Release carries out [driver.Store.Release]. The lock is offered to a locker only if reaches says
// that the store reaches it.
//
// The note of an operator ([driver.ReleaseRequest.Revoked]) is kept by the store, as those of [Record.Move]
// are. Where the error of Renew, Release or Move matches [driver.ErrNotOwner], and the store has such a note of
// the owner that has not ended, its answer is [driver.ErrRevoked].
func (r *Record) Release(
	req driver.ReleaseRequest, reaches func(id string) bool, now time.Time,
) (found driver.Waiting, n Notices, err error) {
	r.At(now)
	if req.Kind.Place() {
		n, err = r.leave(req, now)
		return found, n, err
	}
	if err := r.denied(req.Owner, now); err != nil {
		return found, n, err
	}
	n.Revoked = max(req.Revoked, 0)
	r.accept(req.Owner, 0, now)
	r.token = max(r.token, req.Token)
	r.again(req.Waiter, false)
	r.reserve(r.offer(&n, reaches, now), now)
	found = names(r.waiting).Found(req.Waiter)
	r.free(&n, now)
	return found, n, nil
}

// Decline carries out [driver.Turns.Decline].
func (r *Record) Decline(id string, now time.Time) (n Notices) {
	r.At(now)
	r.alone(id)
	kept := r.reserved.stands(now)
	switch {
	case r.find(id) < 0:
	case kept && r.passes(id, 0, now) <= 0:
		r.reserve(reservation{}, now)
		r.free(&n, now)
	case kept && r.reserved.to() == id:
		// A caller that has come since may hold the lock by the offer.
	default:
		r.unlist(id)
	}
	return n
}

// Lose ends all holds and the reservation. The tokens go on.
func (r *Record) Lose(now time.Time) (n Notices) {
	r.At(now)
	r.reserved = reservation{}
	r.offersNothing()
	r.free(&n, now)
	return n
}

// Seize gives the lock to an exclusive owner, as if all others had lost it.
func (r *Record) Seize(owner string, ttl time.Duration, now time.Time) {
	r.At(now)
	r.owner, r.places, r.expires, r.barrier, r.reserved = owner, nil, now.Add(ttl), time.Time{}, reservation{}
	r.mint(now, 1)
}

// free ends all holds. The list stays if the lock is reserved.
func (r *Record) free(n *Notices, now time.Time) {
	r.uncall()
	n.Freed = true
	n.turns(r.waiting, 0)
	r.owner, r.places, r.barrier, r.expires = "", nil, time.Time{}, now
	if !r.reserved.stands(now) {
		r.waiting = nil
	}
}

// denied says why an owner does not hold the lock, or returns nil. An owner that has been
// offered the lock holds it as well.
func (r *Record) denied(owner string, now time.Time) error {
	switch {
	case r.owner == owner, r.reserved.offers(owner, now):
		return nil
	case !r.Free():
		return driver.ErrTakenOver
	}
	return driver.ErrDeleted
}

// mint makes so many tokens and returns the first. If the clock lags the last token, it leaves
// room for hand-offs: if the holder dies, the store never sees their tokens.
func (r *Record) mint(now time.Time, tokens int64) (first int64) {
	if first = now.UnixMicro(); first <= r.token {
		first = r.token + room + 1
	}
	r.token = first + tokens - 1
	return first
}

// behind reports whether the clock lags the last token. Then it is not ahead of the hand-offs that
// follow. A second does not count: in tests with a fake clock locks change hands in no time.
func (r *Record) behind(now time.Time) bool {
	return r.token > now.Add(time.Second).UnixMicro()
}

// last moves the end of the last lease on.
func (r *Record) last(ends time.Time) {
	if ends.After(r.expires) {
		r.expires = ends
	}
}
