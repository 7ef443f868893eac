package casstore

import (
	"cmp"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
)

// An owner that shares a lock has a separate entry, a place, and so has an owner of a permit. So owners come and
// leave without a collision, however many there are. A place of a permit has a number below the number of permits, and a
// place of a sharer has the name of its process.
//
// An owner takes a place on condition that this is free, and that the lock is as it was: it says that there may be places.
// With the place, the owner writes the tick of the places. Who wants the lock for itself lists the places, and takes it on
// condition that the lock and the tick are as they were.
//
// A release keeps the place of a permit for the first locker in line, and takes that out of the line, on condition that it
// was still in it. The call says so, and that locker compares its place alone.

// places are the places of a lock, as far as they are known.
type places struct {
	tick     Entry  // that is written whenever an owner takes a place
	taken    []held // it is not changed any more
	allTaken bool   // these are all that were taken when the tick was written, and perhaps some that are free since
}

// unreadable is the owner of a place with a value of something else.
const unreadable = "unreadable"

// placeIn reads an entry of a place.
func placeIn(e Entry) (h held) {
	if err := json.Unmarshal([]byte(e.Value), &h); err != nil || h.Lease <= 0 || h.Owner == "" && h.For == "" {
		h = held{Owner: unreadable, Process: unreadable, Lease: clock.LongestKept.Milliseconds()}
	}
	if h.Owner == "" {
		h.Owner = h.For.ID() + ":0@" + strconv.FormatInt(e.Revision.Number, 10)
	}
	if h.place, h.at = e.Name, e.Revision; h.Granted == 0 {
		h.Granted = e.Revision.Number
	}
	return h
}

// text is the value of the entry of a place.
func (h held) text() string {
	if h.For != "" {
		h.Owner = ""
	}
	text, _ := json.Marshal(h) // it never fails for such a type
	return string(text)
}

// with returns the places with one as it was read or written.
func (p places) with(e Entry) places {
	taken := make([]held, 0, len(p.taken)+1)
	for _, h := range p.taken {
		if h.place != e.Name {
			taken = append(taken, h)
		}
	}
	if e.There() {
		taken = append(taken, placeIn(e))
	}
	p.taken = taken
	return p
}

// isPlace reports whether an entry is a place of a key.
func (l layout) isPlace(key, name string) bool { return strings.HasPrefix(name, l.place(key, "")) }

// others is the owner that stands for places that are not known.
const others = "?"

// setPlaces has the record know the places, but for the places that are kept for the locker that asks. guess says that places
// that are not known make no difference.
func (v *view) setPlaces(guess bool) {
	if !v.Places {
		return
	}
	var owners []string
	for _, h := range v.holds {
		if h.place != "" && (h.For == "" || h.For.ID() != v.own || v.own == "") {
			owners = append(owners, h.Owner)
		}
	}
	if !guess && !v.at.allTaken {
		owners = append(owners, others)
	}
	v.rec.SetPlaces(owners, v.now)
	v.rec.SetEnds(func(owner string) time.Time { return v.signs[owner].ends })
}

// readPlaces adds the places to the holds.
func (v *view) readPlaces() {
	if !v.Places {
		return
	}
	v.holds = append(slices.Clone(v.holds), v.at.taken...)
	slices.SortStableFunc(v.holds, func(a, b held) int { return cmp.Compare(a.Granted, b.Granted) })
}

// dead are the places of owners that have given no sign of life for their lease, and places that were kept for lockers
// that have not come. To an owner that wants the lock for itself, a place that is kept is none if there is no other.
func (v *view) dead(alone bool) (dead []held) {
	alone = alone && !slices.ContainsFunc(v.holds, func(h held) bool { return h.For == "" })
	for _, h := range v.holds {
		if g := v.signs[h.Owner]; h.place != "" && len(dead) < batch && (h.For != "" && alone || !g.mine && !v.now.Before(g.ends)) {
			dead = append(dead, h)
		}
	}
	return dead
}

// vacant reports whether no owner has a place, or the leaving owner alone.
func (v *view) vacant() bool {
	return v.at.allTaken && !slices.ContainsFunc(v.holds, func(h held) bool { return h.place != "" && h.Owner != v.leaver })
}

// burial is the transaction that makes places of the dead free.
func (v *view) burial(dead []held) (txn Txn) {
	compared := map[string]bool{}
	for _, h := range dead {
		txn.If = append(txn.If, Condition{h.place, h.at})
		txn.Then = append(txn.Then, Op{Name: h.place, Delete: true})
		txn.Else = append(txn.Else, h.place)
		if g := v.signs[h.Owner]; g.beat.Name != "" && !compared[g.beat.Name] {
			compared[g.beat.Name] = true
			txn.If = append(txn.If, g.beat)
			txn.Else = append(txn.Else, g.beat.Name)
		}
	}
	txn.Then = append(txn.Then, v.takes())
	txn.Else = append(txn.Else, v.names.lock(v.key), v.names.line(v.key))
	return txn
}

// takes is the operation that goes with each change of the places.
func (v *view) takes() Op { return Op{Name: v.names.taking(v.key), Value: v.process} }

// pick returns a place that may be free: a place kept for the locker that asks, or any other.
func (v *view) pick(ask driver.AcquireRequest) (h held, ok bool) {
	taken := map[string]bool{}
	for _, h := range v.holds {
		if taken[h.place] = true; h.For != "" && v.own != "" && h.For.ID() == v.own {
			return h, true
		}
	}
	if ask.Kind == driver.Shared {
		for i := 0; ; i++ {
			if name := v.names.place(v.key, v.process+"~"+strconv.Itoa(i)); !taken[name] {
				return held{place: name}, true
			}
		}
	}
	first := rand.N(ask.AtMost)
	for i := range ask.AtMost {
		if name := v.names.place(v.key, strconv.Itoa((first+i)%ask.AtMost)); !taken[name] {
			return held{place: name}, true
		}
	}
	return h, false
}

// note takes the entries out of an answer that are of a key.
func (s *Store) note(key string, before found, read []Entry, received time.Time) (at found) {
	at = found{lock: before.lock, line: before.line, places: before.places}
	if at.taken == nil && !at.allTaken {
		at.places = s.lastSeen(key).places
	}
	tick := at.tick.Revision
	for _, e := range read {
		switch {
		case e.Name == s.names.lock(key):
			at.lock = e
		case e.Name == s.names.line(key):
			at.line = e
		case e.Name == s.names.taking(key):
			at.tick, at.allTaken = e, at.allTaken && e.Revision == tick
		case s.names.isPlace(key, e.Name):
			at.places = at.with(e)
		case strings.HasPrefix(e.Name, s.names.beats()):
			s.sawBeat(e.Name, e.Revision, received)
		}
	}
	return at
}

// wrote adds the writes of a transaction to the known places.
// fresh says that no other owner can have taken a place meanwhile.
func (p places) wrote(names layout, key string, txn Txn, answer Answer, fresh bool) places {
	for i, op := range txn.Then {
		e := Entry{Name: op.Name, Value: op.Value, Revision: answer.Written[i]}
		switch {
		case e.Name == names.taking(key):
			// Others may have written it since it was read, unless it was compared, or the lock was not there.
			p.allTaken = p.allTaken && (fresh || compares(txn, e.Name, p.tick.Revision))
			p.tick = e
		case names.isPlace(key, op.Name):
			p = p.with(e)
		}
	}
	return p
}

// compares reports whether a transaction compares an entry with a revision.
func compares(txn Txn, name string, at Revision) bool {
	return slices.Contains(txn.If, Condition{name, at})
}

// placeEnds is after what time a locker in line asks for a place again: it is called when one is free, unless its holder
// has died, or the process that calls.
func (v *view) placeEnds(ttl time.Duration) time.Duration {
	first := time.Duration(-1)
	for _, h := range v.holds {
		if left := v.signs[h.Owner].ends.Sub(v.now); h.place != "" && h.For == "" && (first < 0 || left < first) {
			first = left
		}
	}
	ttl = max(ttl, first, farLook)
	if i := find(v.line.since(v.gone), v.own); i >= 0 && i < driver.KeptFor {
		ttl = min(ttl, 2*farLook)
	}
	return ttl
}
