package keystate

import (
	"slices"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// Move carries out [driver.Store.Acquire] for a request with a From ([driver.AcquireRequest]). The error says
// why the request is refused.
//
// A record has no notes of the owners that have handed the lock on: they would be in it for an hour each.
// The store keeps them apart, in the same change ([Notices], Noted). Where the error matches
// [driver.ErrNotOwner], and the store has a note of From that has not ended, its answer is
// [driver.ErrPassedOn].
func (r *Record) Move(req driver.AcquireRequest, now time.Time) (rep driver.Reply, n Notices, err error) {
	r.At(now)
	if req.Kind.Place() {
		return r.movePlace(req, now)
	}
	switch r.owner {
	case "":
		return rep, n, r.unmoved(req.Kind)
	case req.Owner: // a repeated request
		return r.grant(req, now), n, nil
	case req.From:
	default:
		return rep, n, r.unmoved(req.Kind)
	}
	n.Noted = noted(req, r.expires, now)
	if ends := now.Add(req.TTL); ends.Before(r.expires) && len(r.waiting) > 0 {
		// The lockers that wait would ask only when the lease of From had ended.
		list := slices.Clone(r.waiting)
		list[0].Waiter = list[0].LeavingOffers() // nothing is offered to it
		n.Freed = true
		n.turns(list, 0)
	}
	r.owner, r.expires, r.token = req.Owner, now.Add(req.TTL), max(r.token, req.Above)
	r.mint(now, 1)
	return r.grant(req, now), n, nil
}

// movePlace moves a place. Those who wait for a place ask again after a second at the latest, so
// that no signal has to tell them its new end.
func (r *Record) movePlace(req driver.AcquireRequest, now time.Time) (rep driver.Reply, n Notices, err error) {
	if i := r.placeOf(req.Owner); i >= 0 {
		return driver.Reply{Granted: true, Token: r.places[i].token}, n, nil
	}
	i := r.placeOf(req.From)
	if i < 0 {
		return rep, n, r.unmoved(req.Kind)
	}
	n.Noted = noted(req, r.places[i].ends, now)
	tokens := int64(1)
	if req.Kind == driver.Permit {
		tokens = driver.Tokens
	}
	r.token = max(r.token, req.Above)
	token := r.mint(now, tokens)
	r.places = append(slices.Delete(r.places, i, i+1), place{req.Owner, token, now.Add(req.TTL)})
	r.last(now.Add(req.TTL))
	return driver.Reply{Granted: true, Token: token}, n, nil
}

// noted is for how long it is to be noted that From has handed the lock on. ends is the end of its lease.
func noted(req driver.AcquireRequest, ends, now time.Time) time.Duration {
	if req.Noted <= 0 {
		return 0
	}
	return ends.Sub(now) + req.Noted
}

// unmoved says why the owner From of a request cannot hand the lock on.
func (r *Record) unmoved(kind driver.Kind) error {
	switch {
	case kind.Place():
		return r.noPlace()
	case !r.Free():
		return driver.ErrTakenOver
	}
	return driver.ErrDeleted
}
