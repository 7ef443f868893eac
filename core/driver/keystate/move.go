package keystate

import (
	"slices"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// passed notes that an owner has handed the lock on.
type passed struct {
	owner string
	until time.Time // when the note ends
}

// Move carries out [driver.Store.Acquire] for a request with a From ([driver.AcquireRequest]). The error says
// why the request is refused.
func (r *Record) Move(req driver.AcquireRequest, now time.Time) (rep driver.Reply, n Notices, err error) {
	r.At(now)
	if req.Kind.Place() {
		rep, err = r.movePlace(req, now)
		return rep, n, err
	}
	switch r.owner {
	case "":
		return rep, n, r.unmoved(&req)
	case req.Owner: // a repeated request
		return r.grant(req, now), n, nil
	case req.From:
	default:
		return rep, n, r.unmoved(&req)
	}
	r.note(req, r.expires)
	if ends := now.Add(req.TTL); ends.Before(r.expires) && len(r.waiting) > 0 {
		// The lockers that wait would ask only when the lease of From had ended.
		n.Freed, n.Announced, n.Signal = true, true, driver.Signal{Next: names(r.waiting)}
	}
	r.owner, r.expires, r.token = req.Owner, now.Add(req.TTL), max(r.token, req.Above)
	r.mint(now, 1)
	return r.grant(req, now), n, nil
}

// movePlace moves a place. Those who wait for a place ask again after a second at the latest, so
// that no signal has to tell them its new end.
func (r *Record) movePlace(req driver.AcquireRequest, now time.Time) (rep driver.Reply, err error) {
	if i := r.placeOf(req.Owner); i >= 0 {
		return driver.Reply{Granted: true, Token: r.places[i].token}, nil
	}
	i := r.placeOf(req.From)
	if i < 0 {
		return rep, r.unmoved(&req)
	}
	r.note(req, r.places[i].ends)
	tokens := int64(1)
	if req.Kind == driver.Permit {
		tokens = driver.Tokens
	}
	r.token = max(r.token, req.Above)
	token := r.mint(now, tokens)
	r.places = append(slices.Delete(r.places, i, i+1), place{req.Owner, token, now.Add(req.TTL)})
	r.last(now.Add(req.TTL))
	return driver.Reply{Granted: true, Token: token}, nil
}

// note notes that From has handed the lock on, as long as the request asks for. ends is the end of
// its lease.
func (r *Record) note(req driver.AcquireRequest, ends time.Time) {
	if req.Noted > 0 {
		r.passed = append(r.passed, passed{req.From, ends.Add(req.Noted)})
	}
}

// unmoved says why the owner From of a request cannot hand the lock on.
func (r *Record) unmoved(req *driver.AcquireRequest) error {
	switch {
	case slices.ContainsFunc(r.passed, func(p passed) bool { return p.owner == req.From }):
		return driver.ErrPassedOn
	case req.Kind.Place():
		return r.noPlace()
	case !r.Free():
		return driver.ErrTakenOver
	}
	return driver.ErrDeleted
}
