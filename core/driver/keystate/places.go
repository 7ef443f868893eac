package keystate

import (
	"slices"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// place is what an owner has that shares a lock with others.
type place struct {
	owner string
	token int64
	ends  time.Time
}

// enter makes a try to get a place.
func (r *Record) enter(req driver.AcquireRequest, now time.Time) driver.Reply {
	switch {
	case r.owner != "":
		return driver.Reply{Holder: r.owner, TTL: r.expires.Sub(now), Listed: r.list(req.Waiter, true)}
	case r.reserved.stands(now) && (r.reserved.offer != "" || !r.together(&req)):
		if left := r.passes(req.Waiter.ID(), 0, now); left > 0 {
			return driver.Reply{Holder: r.reserved.offer, TTL: left, Listed: r.list(req.Waiter, true)}
		}
	}
	kept := r.reserved.stands(now)
	r.reserved = reservation{}
	if i := r.placeOf(req.Owner); i >= 0 {
		return driver.Reply{Granted: true, Token: r.places[i].token}
	}
	full := req.Kind == driver.Permit && len(r.places) >= req.AtMost
	if full || now.Before(r.barrier) && !r.ahead(req.Waiter.ID()) {
		until := r.barrier
		if full {
			until = slices.MinFunc(r.places, func(a, b place) int { return a.ends.Compare(b.ends) }).ends
		}
		return driver.Reply{
			Holder: r.holders(), Full: full, TTL: min(until.Sub(now), linger), Listed: r.list(req.Waiter, true),
		}
	}
	tokens := int64(1)
	if req.Kind == driver.Permit {
		tokens = driver.Tokens
	}
	r.unlist(req.Waiter.ID())
	token := r.mint(now, tokens)
	r.places = append(r.places, place{req.Owner, token, now.Add(req.TTL)})
	r.last(now.Add(req.TTL))
	if kept {
		r.protect(now)
	}
	return driver.Reply{Granted: true, Token: token}
}

// protect keeps new places out where a locker waits that wants the lock. Its call comes when those before it have left.
func (r *Record) protect(now time.Time) {
	if slices.ContainsFunc(r.waiting, func(w waiting) bool { return !w.Place() }) {
		r.barrier = now.Add(barrier)
	}
}

// stay extends the lease of a place.
func (r *Record) stay(renewal driver.Renewal, now time.Time) error {
	i := r.placeOf(renewal.Owner)
	if i < 0 {
		return r.noPlace()
	}
	if ends := now.Add(renewal.TTL); ends.After(r.places[i].ends) {
		r.places[i].ends = ends
		r.last(ends)
	}
	return nil
}

// leave gives a place up.
func (r *Record) leave(req driver.ReleaseRequest, now time.Time) (n Notices, err error) {
	i := r.placeOf(req.Owner)
	if i < 0 {
		return n, r.noPlace()
	}
	n.Revoked = max(req.Revoked, 0)
	r.places = slices.Delete(r.places, i, i+1)
	r.again(req.Waiter, true)
	r.token = max(r.token, req.Token)
	if len(r.places) == 0 {
		r.reserve(reservation{}, now)
		r.free(&n, now)
		return n, nil
	}
	n.Freed = true
	r.invite(&n, req.AtMost-len(r.places), now)
	return n, nil
}

// invite calls lockers to so many free places, or to one at least. While no barrier
// stands, a locker that was called before and has not come counts as gone. So does a
// locker that wanted the lock, once its barrier has ended. Both lose their places in the
// list.
func (r *Record) invite(notices *Notices, free int, now time.Time) {
	stands, over := now.Before(r.barrier), !r.barrier.IsZero() && !now.Before(r.barrier)
	var stays, called []waiting
	n, rest := 0, r.waiting
	for ; len(rest) > 0; rest = rest[1:] {
		w := rest[0]
		if n >= free && len(called) > 0 || !w.Place() && stands {
			break
		}
		keep := stands
		switch {
		case !w.Place():
			keep = !over
		case !w.called:
			called = append(called, w)
			w.called, keep = true, true
			n++
		default:
			n++ // it may be on its way
		}
		if keep {
			stays = append(stays, w)
		}
	}
	if len(called) > 0 {
		notices.turns(slices.Concat(called, rest), len(called))
	}
	r.waiting = append(stays, rest...)
	if over {
		r.barrier = time.Time{}
	}
}

// ahead reports whether a locker is in the list, and no other locker that wants the lock
// before it.
func (r *Record) ahead(id string) bool {
	for _, w := range r.waiting {
		if w.ID() == id {
			return id != ""
		}
		if !w.Place() {
			return false
		}
	}
	return false
}

// together reports whether a locker is called now that the lock is free: it is ahead, and so
// many lockers want places before it that there is room for it.
func (r *Record) together(req *driver.AcquireRequest) bool {
	before := r.find(req.Waiter.ID())
	return r.ahead(req.Waiter.ID()) && (req.Kind == driver.Shared || before < req.AtMost)
}

func (r *Record) placeOf(owner string) int {
	return slices.IndexFunc(r.places, func(p place) bool { return p.owner == owner })
}

func (r *Record) holders() string {
	all := make([]string, len(r.places))
	for i, p := range r.places {
		all[i] = p.owner
	}
	return strings.Join(all, ",")
}

// noPlace says why an owner has no place.
func (r *Record) noPlace() error {
	if r.owner != "" {
		return driver.ErrTakenOver
	}
	return driver.ErrDeleted
}
