package keystate

import (
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// The methods of this file are for a store without a clock that all of its processes share. Such a
// store keeps the instants of a record relative to the moment of the writing, and finds out when
// leases end by its own clock.

// Shift moves all instants of the record by d.
func (r *Record) Shift(d time.Duration) {
	move := func(instants ...*time.Time) {
		for _, t := range instants {
			if !t.IsZero() {
				*t = t.Add(d)
			}
		}
	}
	move(&r.expires, &r.barrier, &r.reserved.since, &r.line.since, &r.line.until)
	for i := range r.places {
		move(&r.places[i].ends)
	}
}

// SetEnds sets when the leases of the holders end.
func (r *Record) SetEnds(ends func(owner string) time.Time) {
	if r.Free() {
		return
	}
	r.expires = time.Time{}
	if r.owner != "" {
		r.expires = ends(r.owner)
	}
	for i := range r.places {
		r.places[i].ends = ends(r.places[i].owner)
		r.last(r.places[i].ends)
	}
}

// SetPlaces replaces the owners that have places, for a store that keeps these apart from the text of the record. Their
// ends are set by SetEnds. Without any, the lock counts as having become free at this moment.
func (r *Record) SetPlaces(owners []string, now time.Time) {
	if r.places = nil; len(owners) == 0 && r.owner == "" {
		r.expires = now
	}
	for _, owner := range owners {
		r.places = append(r.places, place{owner: owner})
	}
}

// SetWaiting replaces the list of waiting lockers by a list as [Record.Waiting] returns it.
func (r *Record) SetWaiting(list driver.Waiters) {
	r.waiting = nil
	for w := range list.All() {
		if w.Called() {
			r.waiting = append(r.waiting, waiting{w.AtPlaces(), true})
		} else {
			r.waiting = append(r.waiting, waiting{w, false})
		}
	}
}

// SetLast sets the last token, and returns the one before, for a store with tokens that are no times.
func (r *Record) SetLast(token int64) (before int64) {
	before, r.token = r.token, token
	return before
}

// SetNext sets the token of the next offer, for a store with tokens that are no times.
func (r *Record) SetNext(token int64) { r.next = token }

// Offered returns the owner that was offered the lock, and the token of the offer; an empty one if the lock
// is kept for none, or the time of the offer has passed.
func (r *Record) Offered(now time.Time) (owner string, token int64) {
	if !r.reserved.stands(now) {
		return "", 0
	}
	return r.reserved.offer, r.reserved.token
}

// Owners returns the holders: the exclusive owner, or the owners of places.
func (r *Record) Owners() (owners []string) {
	if r.owner != "" {
		owners = append(owners, r.owner)
	}
	for _, p := range r.places {
		owners = append(owners, p.owner)
	}
	return owners
}

// Reserved reports whether the lock is free, and kept for the first of the lockers that wait.
func (r *Record) Reserved(now time.Time) bool { return r.reserved.stands(now) }

// Ordered reports whether the order of the lockers that wait decides about a grant: the lock is kept for the first of
// them, or a locker that wants the lock keeps new places out.
func (r *Record) Ordered(now time.Time) bool { return r.reserved.stands(now) || now.Before(r.barrier) }

// Idle reports whether the record says nothing but the last token: a store may forget it then if its
// tokens grow all the same.
func (r *Record) Idle(now time.Time) bool {
	return r.Free() && !r.reserved.stands(now) && len(r.waiting)+len(r.unknown) == 0 &&
		r.line.forgotten(now) && (r.line.only == "" || !now.Before(r.line.until))
}
