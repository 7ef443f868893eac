package keystate

import (
	"slices"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// remember is for how long a store remembers at least the number of a caller that is Newest.
const remember = time.Minute

// lately is of how many lockers a record knows the last caller that was Newest.
const lately = 63

// line is what a lock knows about callers that are not in turn.
type line struct {
	newest int64     // the highest number of a caller that is Newest
	since  time.Time // when that caller came
	came   []arrival // of the lockers that had such callers last, in the order of the numbers; each locker once
	only   string    // the locker of the OneWaiter caller that waits
	until  time.Time // and until when
}

// arrival is the last caller of a locker that is Newest. A request that says "I come now" may be
// repeated after callers of other lockers have come, or come late: it must not count again.
type arrival struct {
	locker string
	order  int64 // the caller's place among the callers of the locker
	number int64
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
		switch last := r.line.last(req.Waiter.ID()); {
		case last == nil || req.Order > last.order:
			r.line.arrives(arrival{req.Waiter.ID(), req.Order, max(r.line.newest+1, now.UnixMicro())}, now)
			req.Number = r.line.newest
		case req.Order < last.order:
			return true // a later caller of the locker has asked already
		default:
			req.Number = last.number // repeated
		}
	}
	return req.Number < r.line.newest
}

// arrives notes the newest caller of all.
func (l *line) arrives(a arrival, now time.Time) {
	l.came = slices.DeleteFunc(l.came, func(b arrival) bool { return b.locker == a.locker })
	if len(l.came) >= lately {
		l.came = slices.Delete(l.came, 0, 1)
	}
	l.newest, l.since, l.came = a.number, now, append(l.came, a)
}

// forgotten reports whether no caller that is Newest has come for so long that nothing of it counts any
// more: the numbers follow the clock.
func (l *line) forgotten(now time.Time) bool { return now.Sub(l.since) > remember }

// last returns the last Newest caller of a locker; nil if it had none lately.
func (l *line) last(locker string) *arrival {
	if i := slices.IndexFunc(l.came, func(a arrival) bool { return a.locker == locker }); i >= 0 {
		return &l.came[i]
	}
	return nil
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
			if r.unlist(id); len(r.waiting) >= mostListed {
				r.waiting = r.waiting[:mostListed-1] // the last asks for a place again
			}
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
