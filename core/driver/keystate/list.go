package keystate

import (
	"slices"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// mostListed is how many lockers a list has at most: each request reads and writes it. The other lockers
// ask now and then.
const mostListed = 120

// waiting is a locker in the list of the lockers that wait.
type waiting struct {
	driver.Waiter
	called bool // to a place that became free while others were held, and has not come yet
}

// names makes the list that is announced.
func names(list []waiting) driver.Waiters {
	all := make([]driver.Waiter, len(list))
	for i, w := range list {
		all[i] = w.Waiter
	}
	return driver.List(all...)
}

// uncall notes that no locker has been called to a place while others are held.
func (r *Record) uncall() {
	for i := range r.waiting {
		r.waiting[i].called = false
	}
}

// find returns where a locker stands in the list; negative if it is not there.
func (r *Record) find(id string) int {
	return slices.IndexFunc(r.waiting, func(w waiting) bool { return w.ID() == id })
}

// unlist takes a locker out of the list.
func (r *Record) unlist(id string) {
	if i := r.find(id); i >= 0 {
		r.waiting = slices.Delete(r.waiting, i, i+1)
	}
}

// list enters a waiting locker at the end of the list, once, or changes the kind of its
// request. A full list does not grow.
func (r *Record) list(w driver.Waiter, wantsPlace bool) (listed bool) {
	if w == "" {
		return false
	}
	entry := waiting{Waiter: w.Exclusive()}
	if wantsPlace {
		entry.Waiter = w.AtPlaces()
	}
	if i := r.find(w.ID()); i >= 0 {
		r.waiting[i] = entry
	} else if len(r.waiting) < mostListed {
		r.waiting = append(r.waiting, entry)
	} else {
		return false
	}
	return true
}

// again enters the locker of a release at the end of the list, unless it is there. The last room is for the
// lockers that a full list has left out, and that ask now.
func (r *Record) again(w driver.Waiter, place bool) {
	if r.find(w.ID()) < 0 && len(r.waiting) < mostListed-1 {
		r.list(w, place || w.Place())
	}
}

const (
	// called is after how long a locker asks again that a release calls by name.
	called = 10 * time.Second
	// uncalled is the same for the other lockers, at least: if all lockers that a release
	// has called are dead, no message wakes the others. The time grows with the length of the list, so that a list costs 115 requests a
	// second at most.
	uncalled = 1500 * time.Millisecond
)

// Again bounds the TTL of a reply to a locker in the list, for a store that calls lockers by name and does
// not look itself whether these come.
func (r *Record) Again(rep *driver.Reply, id string) {
	switch {
	case !rep.Listed:
	case r.find(id) <= driver.KeptFor:
		rep.TTL = min(rep.TTL, called)
	default:
		rep.TTL = min(rep.TTL, r.looks())
	}
}

// looks returns after how long a locker asks again that is not called.
func (r *Record) looks() time.Duration {
	return max(uncalled, time.Duration(len(names(r.waiting))/4)*time.Millisecond)
}

// news reports whether the holders have to learn of a waiter, if it is refused: it begins the
// list, or asks again.
func (r *Record) news(w driver.Waiter) bool {
	id := w.ID()
	return id != "" && (len(r.waiting) == 0 || r.find(id) >= 0)
}

// want calls the attentive holders.
func (r *Record) want(n *Notices) {
	wanted := func(owner string) {
		if id, attentive := driver.IsAttentive(owner); attentive {
			n.call(id, driver.Call{What: driver.Wanted, Owner: owner})
		}
	}
	wanted(r.owner)
	for _, p := range r.places {
		wanted(p.owner)
	}
}
