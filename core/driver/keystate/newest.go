package keystate

import (
	"slices"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// line is what a lock knows about callers that are not in turn.
type line struct {
	newest int64     // the highest number of a caller that is Newest
	by     string    // the locker of that caller
	order  int64     // the caller's place among the callers of the locker
	only   string    // the locker of the OneWaiter caller that waits
	until  time.Time // and until when
}

// stand says whether a caller of the locker that holds the lock may wait.
func (r *Record) stand(req driver.AcquireRequest, now time.Time) driver.Reply {
	switch {
	case !r.Free():
		return r.refusedByHolders(req, now)
	case r.reserved.stands(now):
		return r.refuse(req, driver.Reply{Holder: r.reserved.offer, Token: r.reserved.token, TTL: r.reserved.left(now)}, now)
	}
	return driver.Reply{Number: req.Number}
}

// comes numbers a caller that is Newest and comes at this moment. It reports whether the
// caller may not wait.
func (r *Record) comes(req *driver.AcquireRequest, now time.Time) (out bool) {
	if req.Line != driver.Newest {
		return false
	}
	if r.holds(req.Owner) {
		req.Number = max(req.Number, min(r.line.newest, r.token)) // a repeated request: that is about its number
		return false
	}
	if req.Number == 0 {
		switch by := req.Waiter.ID(); {
		case by != r.line.by || req.Order > r.line.order:
			r.line.newest, r.line.by, r.line.order = max(r.line.newest+1, now.UnixMicro()), by, req.Order
		case req.Order < r.line.order:
			return true // a later caller of the locker has asked already
		}
		req.Number = r.line.newest
	}
	return req.Number < r.line.newest
}

// holds reports whether an owner holds the lock exclusively.
func (r *Record) holds(owner string) bool { return owner != "" && r.owner == owner }

// refuse completes the reply to a request for an exclusive owner that is refused.
func (r *Record) refuse(req driver.AcquireRequest, rep driver.Reply, now time.Time) driver.Reply {
	id := req.Waiter.ID()
	switch req.Line {
	case driver.Newest:
		rep.Number = req.Number
		if id != "" && r.find(id) != 0 {
			r.unlist(id)
			r.waiting = slices.Insert(r.waiting, 0, waiting{Waiter: req.Waiter})
		}
	case driver.OneWaiter:
		rep.Number = 1
		if r.line.only != "" && r.line.only != id && now.Before(r.line.until) {
			return driver.Reply{Out: true}
		}
		r.line.only, r.line.until = id, now.Add(onlyFor)
	case driver.InTurn:
	}
	rep.Listed = r.list(req.Waiter, false)
	return rep
}

// grant makes the reply to a request for an exclusive owner that is granted.
func (r *Record) grant(req driver.AcquireRequest, now time.Time) driver.Reply {
	rep := driver.Reply{Granted: true, Token: r.token}
	if r.behind(now) {
		rep.Room = room
	}
	if req.Line == driver.Newest {
		rep.Number = req.Number
	}
	return rep
}

// alone notes that a caller of a locker, if it was the only waiter, waits no more.
func (r *Record) alone(id string) {
	if r.line.only == id {
		r.line.only = ""
	}
}

// displaced returns the id of the first locker of the list, unless that has the newer caller.
func (r *Record) displaced(newer string) (id string) {
	if len(r.waiting) == 0 || r.waiting[0].ID() == newer {
		return ""
	}
	return r.waiting[0].ID()
}
