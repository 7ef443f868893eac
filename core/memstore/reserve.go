package memstore

import (
	"slices"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// turns is for how many lockers a lock is reserved that became free.
const turns = 4

// reservation says that a lock is free, and kept for the first of the lockers that wait: for
// each as long as it may take, one after the other. It means that others are refused. A lease
// begins as it does for a free lock. The zero value is none.
type reservation struct {
	since time.Time
	lasts time.Duration
}

// stands reports whether others are kept out.
func (v reservation) stands(now time.Time) bool { return now.Sub(v.since) < v.lasts }

// reserve keeps a lock that became free for the lockers whose turn it is. Lockers that do
// not say how long they may take come as they can.
func (r *lock) reserve(now time.Time) {
	v := reservation{since: now}
	for i, w := range r.waiting {
		if i == turns || w.patience == "" {
			break
		}
		v.lasts += w.takes()
	}
	r.reserved = v
}

// passes returns in what time the turn of a locker begins for which a lock is reserved, or the
// reservation ends. If that has come, the lockers before it lose their places.
func (r *lock) passes(name string, now time.Time) (left time.Duration) {
	id, after := waiterOf(name).id, time.Duration(0)
	for i, w := range r.waiting {
		switch {
		case w.id == id:
			if left = after - now.Sub(r.reserved.since); left <= 0 {
				r.waiting = r.waiting[i+1:]
			}
			return left
		case w.patience == "":
			return r.reserved.lasts - now.Sub(r.reserved.since)
		}
		after += w.takes()
	}
	return r.reserved.lasts - now.Sub(r.reserved.since)
}

// takes is how long a locker may take to answer a call.
func (w waiting) takes() time.Duration {
	_, patience := driver.CutPatience(w.name())
	return patience
}

// RoundTrip implements [driver.Ranger]: no time passes on the way.
func (s *Store) RoundTrip() time.Duration { return 0 }

// Decline implements [driver.Ranger].
func (s *Store) Decline(key, waiter string) {
	if tell := s.decline(key, waiter, time.Now()); tell != nil {
		tell()
	}
}

func (s *Store) decline(key, waiter string, now time.Time) (tell func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.lock(key, now)
	id := waiterOf(waiter).id
	r.alone(waiter)
	kept := r.reserved.stands(now)
	if !slices.ContainsFunc(r.waiting, func(w waiting) bool { return w.id == id }) {
		return nil
	}
	if !kept || r.passes(waiter, now) > 0 {
		r.waiting = slices.DeleteFunc(r.waiting, func(w waiting) bool { return w.id == id })
		return nil
	}
	r.reserve(now)
	return s.free(key, r, now)
}
