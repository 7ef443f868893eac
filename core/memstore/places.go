package memstore

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

const (
	// linger is how long the list of waiting lockers is kept after the last place has
	// ended, and how long a locker waits at most until it asks for a place again.
	linger = time.Second
	// barrier is how long an exclusive request keeps new places out at most.
	barrier = 1500 * time.Millisecond
)

// place is what an owner has that shares a lock with others.
type place struct {
	owner string
	token int64
	ends  time.Time
}

// waiting is a locker in the list of the lockers that wait.
type waiting struct {
	id       string
	patience string // as it stands behind the id
	place    bool   // it wants a place, else the lock
	called   bool   // to a place that became free, and has not come yet
}

// name is how the list says it.
func (w waiting) name() string {
	if w.place {
		return "+" + w.id + w.patience
	}
	return w.id + w.patience
}

// waiterOf reads a name.
func waiterOf(name string) waiting {
	name, wantsPlace := strings.CutPrefix(name, "+")
	id, _ := driver.CutPatience(name)
	return waiting{id: id, patience: name[len(id):], place: wantsPlace}
}

// names makes the list that is announced.
func names(list []waiting) string {
	all := make([]string, len(list))
	for i, w := range list {
		all[i] = w.name()
	}
	return strings.Join(all, ",")
}

// listOf reads such a list.
func listOf(names string) (list []waiting) {
	for name := range strings.SplitSeq(names, ",") {
		if name != "" {
			list = append(list, waiterOf(name))
		}
	}
	return list
}

// checkKind returns an error for a request that makes no sense.
func checkKind(req *driver.AcquireRequest) error {
	switch {
	case req.Kind > driver.Permit:
		return fmt.Errorf("%w: unknown Kind %d", driver.ErrConfig, req.Kind)
	case req.Kind == driver.Permit && req.AtMost < 1:
		return fmt.Errorf("%w: AtMost is %d: at least 1 owner must be allowed a permit", driver.ErrConfig, req.AtMost)
	}
	return nil
}

// enter makes a try to get a place.
func (r *lock) enter(req driver.AcquireRequest, now time.Time) driver.Reply {
	switch {
	case r.owner != "":
		return driver.Reply{Holder: r.owner, TTL: r.expires.Sub(now), Listed: r.list(req.Waiter, true)}
	case r.reserved.stands(now) && (r.reserved.offer != "" || !r.together(&req)):
		if left := r.passes(req.Waiter, 0, now); left > 0 {
			return driver.Reply{Holder: r.reserved.offer, TTL: left, Listed: r.list(req.Waiter, true)}
		}
	}
	r.reserved = reservation{}
	if i := r.placeOf(req.Owner); i >= 0 {
		return driver.Reply{Granted: true, Token: r.places[i].token}
	}
	full := req.Kind == driver.Permit && len(r.places) >= req.AtMost
	if full || now.Before(r.barrier) && !r.ahead(req.Waiter) {
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
	r.waits(req)
	token := r.mint(now, tokens)
	r.places = append(r.places, place{req.Owner, token, now.Add(req.TTL)})
	r.last(now.Add(req.TTL))
	return driver.Reply{Granted: true, Token: token}
}

// stay extends the lease of a place.
func (r *lock) stay(renewal driver.Renewal, now time.Time) error {
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

// leave gives a place up. It reports whether the lock is free then, or else returns what
// to announce.
func (r *lock) leave(req driver.ReleaseRequest, now time.Time) (free bool, signal driver.Signal, err error) {
	i := r.placeOf(req.Owner)
	if i < 0 {
		return false, driver.Signal{}, r.noPlace()
	}
	r.places = slices.Delete(r.places, i, i+1)
	r.again(req.Waiter, true)
	if len(r.places) == 0 {
		return true, driver.Signal{}, nil
	}
	return false, r.invite(req.AtMost-len(r.places), now), nil
}

// invite calls lockers to so many free places, or to one at least. While no barrier
// stands, a locker that was called before and has not come has left, and so has a locker
// that wanted the lock and whose barrier has ended: they lose their places in the list.
func (r *lock) invite(free int, now time.Time) driver.Signal {
	stands, over := now.Before(r.barrier), !r.barrier.IsZero() && !now.Before(r.barrier)
	var stays, called []waiting
	n, rest := 0, r.waiting
	for ; len(rest) > 0; rest = rest[1:] {
		w := rest[0]
		if n >= free && len(called) > 0 || !w.place && stands {
			break
		}
		keep := stands
		switch {
		case !w.place:
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
	signal := driver.Signal{Now: len(called)}
	if signal.Now > 0 {
		signal.Next = names(append(called, rest...))
	}
	r.waiting = append(stays, rest...)
	if over {
		r.barrier = time.Time{}
	}
	return signal
}

// ahead reports whether a locker is in the list, and no other locker that wants the lock
// before it.
func (r *lock) ahead(name string) bool {
	id := waiterOf(name).id
	for _, w := range r.waiting {
		if w.id == id {
			return id != ""
		}
		if !w.place {
			return false
		}
	}
	return false
}

// together reports whether a locker is called now that the lock is free: it is ahead, and so
// many lockers want places before it that there is room for it.
func (r *lock) together(req *driver.AcquireRequest) bool {
	id := waiterOf(req.Waiter).id
	before := slices.IndexFunc(r.waiting, func(w waiting) bool { return w.id == id })
	return r.ahead(req.Waiter) && (req.Kind == driver.Shared || before < req.AtMost)
}

// waits takes the locker of a request that is granted out of the list. If there is no
// list, the list that came with the request is kept.
func (r *lock) waits(req driver.AcquireRequest) {
	if len(r.waiting) == 0 {
		r.waiting = listOf(req.Rest)
		return
	}
	id := waiterOf(req.Waiter).id
	r.waiting = slices.DeleteFunc(r.waiting, func(w waiting) bool { return w.id == id })
}

// list enters a waiting locker at the end of the list, once, or changes what it wants.
func (r *lock) list(name string, wantsPlace bool) (listed bool) {
	if name == "" {
		return false
	}
	entry := waiterOf(name)
	entry.place = wantsPlace
	if i := slices.IndexFunc(r.waiting, func(w waiting) bool { return w.id == entry.id }); i >= 0 {
		r.waiting[i] = entry
	} else {
		r.waiting = append(r.waiting, entry)
	}
	return true
}

// again enters the locker of a release at the end of the list, unless it is there.
func (r *lock) again(name string, place bool) {
	entry := waiterOf(name)
	if !slices.ContainsFunc(r.waiting, func(w waiting) bool { return w.id == entry.id }) {
		r.list(strings.TrimPrefix(name, "+"), place || entry.place)
	}
}

// mint makes so many tokens and returns the first. Where the clock is behind the last token, it
// leaves room for hand-offs that the store never learns of if the holder dies.
func (r *lock) mint(now time.Time, tokens int64) (first int64) {
	first = max(r.token+room+1, now.UnixMicro())
	r.token = first + tokens - 1
	return first
}

// room is how many tokens follow each token that are never minted, while the clock is behind it.
const room = 15

// behind reports whether the clock is behind the last token. Then it is not ahead of the hand-offs
// that follow. A second does not count: in tests with a fake clock locks change hands in no time.
func (r *lock) behind(now time.Time) bool {
	return r.token > now.Add(time.Second).UnixMicro()
}

// last moves the end of the last lease on.
func (r *lock) last(ends time.Time) {
	if ends.After(r.expires) {
		r.expires = ends
	}
}

func (r *lock) placeOf(owner string) int {
	return slices.IndexFunc(r.places, func(p place) bool { return p.owner == owner })
}

func (r *lock) holders() string {
	all := make([]string, len(r.places))
	for i, p := range r.places {
		all[i] = p.owner
	}
	return strings.Join(all, ",")
}

// noPlace says why an owner has no place.
func (r *lock) noPlace() error {
	if r.owner != "" {
		return driver.ErrTakenOver
	}
	return driver.ErrDeleted
}
