package casstore

import (
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/keystate"
)

// leaves is a release of a place.
type leaves struct {
	*parting
	as    held
	at    found
	freed bool // the place has been given up: others are to be called yet
	after bool // another owner has a place still
	last  bool // no other owner has a place, as far as is known
	mixes bool // it calls any of the first lockers
	again int  // how often others have called the same locker
	known bool // the line is known as it was after that
}

// leave gives a place up.
func (p *parting) leave() error {
	as := held{}
	if p.hold != nil {
		p.mu.Lock()
		as = p.hold.as
		p.mu.Unlock()
	}
	for again := !p.at.lock.There(); again; {
		var err error
		if as, again, err = p.findPlace(); err != nil && !again {
			return err
		}
	}
	return p.vacate(as)
}

// findPlace sees to it that an owner gets no place later, and looks whether it has one.
func (p *parting) findPlace() (as held, again bool, err error) {
	key := p.ask.Key
	txn := Txn{Then: p.voiding(), Read: []string{p.names.lock(key), p.names.line(key), p.names.taking(key)}}
	switch {
	case p.hold == nil:
		txn.List = []Range{{Prefix: p.names.place(key, "")}}
	case p.hold.tried.Name != "":
		txn.Read = append(txn.Read, p.hold.tried.Name)
	}
	answer, received, again, err := p.send(txn)
	if err != nil {
		return as, p.barely(err) || again, err
	}
	p.voided(answer)
	read := answer.Read
	for _, list := range answer.Lists {
		read = append(read, list...)
	}
	at := p.note(key, found{places: places{taken: []held{}}}, read, received)
	as, ours, err := p.holderIn(at, p.ask.Owner)
	switch {
	case err != nil:
		return as, false, err
	case ours && as.place != "":
		p.at = at
		return as, false, nil
	case p.void:
		return as, p.why == nil, p.why
	}
	return as, false, p.noPlace(at)
}

// noPlace says why an owner has no place.
func (p *parting) noPlace(at found) error {
	var v value
	if at.lock.There() {
		if _, err := v.read(at.lock); err == nil && len(v.Holds) > 0 {
			return driver.ErrTakenOver
		}
	}
	return driver.ErrDeleted
}

// vacate gives up a place that is taken, and calls the lockers that may have it, or the lock.
func (p *parting) vacate(as held) error {
	l := &leaves{parting: p, as: as, at: p.at}
	if last := p.lastSeen(p.ask.Key); last.lock.Revision.Number >= l.at.lock.Revision.Number {
		l.at = last
	}
	again, err := true, error(nil)
	for round := 0; again && round < rounds; round++ {
		again, err = l.round(round)
	}
	if l.freed { // the others ask again after a time
		return p.why
	}
	return err
}

// gone is the suffix of a released place's name. Only the view of the release has such a name.
const gone = "/gone"

// view is the lock with the place.
func (l *leaves) view() (*view, error) {
	as, at := l.as, l.at
	if at = l.Store.known(l.ask.Key, at); l.freed {
		as.place += gone // another owner may have it
	}
	at.places = at.with(Entry{Name: as.place, Value: as.text(), Revision: as.at})
	v, err := l.open(l.ask.Key, at, time.Time{})
	if err != nil {
		return nil, err
	}
	if v.own = l.ask.Waiter.ID(); v.own == "" {
		v.own = lockerOf(l.ask.Owner)
	}
	line := v.line.since(v.gone)
	if l.mixes = !l.last && l.ask.Kind == driver.Permit && (l.again > 0 || !v.at.full && v.Permits > 0 && len(line) > 2*v.Permits); l.mixes {
		v.rec.SetWaiting(names(v.mixed(l.again == 0)))
	}
	v.leaver, v.place = as.Owner, true
	for owner, g := range v.signs { // whether another owner lives is for those to find out that wait
		g.ends = v.now.Add(dead)
		v.signs[owner] = g
	}
	v.setPlaces(false)
	return v, nil
}

// round makes one try.
func (l *leaves) round(round int) (again bool, err error) {
	v, err := l.view()
	if err != nil {
		return false, err
	}
	if l.freed && (!v.Places || l.after && l.ask.Kind == driver.Shared && v.ordered) {
		return false, nil // another owner has seen to it, or the last of them does
	}
	ask := l.ask
	ask.Token = 0 // tokens grow with the revisions of the server
	if ask.AtMost == 0 {
		ask.AtMost = v.Permits
	}
	if l.why != nil { // the server refuses what writes
		return l.give(v, Txn{}, keystate.Notices{})
	}
	if l.lapsed {
		return l.lapse(v)
	}
	_, notices, err := v.rec.Release(ask, func(string) bool { return true }, v.now)
	if err != nil {
		return false, err
	}
	switch {
	case v.rec.Free() && l.mixes:
		l.last = true // the line stays as it is
		return true, nil
	case v.rec.Free():
		txn := v.write(notices, held{}, false)
		if v.unsure {
			l.at, again, err = l.tries.list(l.ask.Key, v.at)
			return again, err
		}
		return l.commit(v, txn, notices)
	case !l.freed && l.again == mostCollisions/2 && !v.at.full: // many of the lockers that it knew have gone
		l.again++
		l.at, again, err = l.tries.list(l.ask.Key, v.at)
		return again, err
	case l.freed && l.again > mostCollisions:
		return false, nil // the lockers ask after a time
	case !l.freed && l.again > mostCollisions:
		return l.give(v, Txn{}, notices)
	}
	if l.freed {
		if !v.at.allTaken {
			l.at, _, again, err = l.listPlaces(l.ask.Key, v.at, true)
			return again, err
		}
		if !l.known && !v.at.full && l.calls(v) {
			l.known = true
			l.at, again, err = l.tries.list(l.ask.Key, v.at)
			return again, err
		}
	} else if l.ask.Kind == driver.Permit && !v.waits() && !v.at.full {
		l.at, again, err = l.tries.list(l.ask.Key, v.at)
		return again, err
	}
	if !l.freed && l.ask.Kind == driver.Shared { // it may be the last
		return l.give(v, Txn{Then: v.again(l)}, notices)
	}
	txn, called := v.leaving(l, notices)
	if l.freed && called == 0 {
		return false, nil
	}
	if called == 0 {
		return l.give(v, txn, notices)
	}
	return l.commit(v, txn, notices)
}

// lapse gives up a place whose lease has ended. As where others find that out, no locker loses its place in line; but the
// first ones are called, and ask.
func (l *leaves) lapse(v *view) (again bool, err error) {
	if !l.freed {
		return l.give(v, Txn{}, keystate.Notices{})
	}
	if !v.at.full && !v.waits() {
		l.at, again, err = l.tries.list(l.ask.Key, v.at)
		return again, err
	}
	to := called{}
	for _, w := range v.line.since(v.gone)[:min(len(v.line.since(v.gone)), driver.KeptFor)] {
		to.add(w.Process, w.Name, driver.Call{}, call{})
	}
	txn := Txn{Then: to.ops(v.names, v.key)}
	if len(txn.Then) > 0 {
		_, _, again, err = l.send(txn)
	}
	return again, err
}

// calls reports whether a locker may have to be called while others have places.
func (l *leaves) calls(v *view) bool {
	return l.ask.Kind == driver.Permit || !v.ordered
}

// give gives up the place alone, and looks who is to be called then.
func (l *leaves) give(v *view, txn Txn, notices keystate.Notices) (again bool, err error) {
	key := l.ask.Key
	txn.If = []Condition{{l.as.place, l.as.at}}
	txn.Then = append(l.voiding(), txn.Then...)
	txn.Then = append(txn.Then, Op{Name: l.as.place, Delete: true})
	if l.why == nil {
		txn.Then = append(append(txn.Then, v.takes()), l.noting(key, l.ask.Owner, notices)...)
	}
	txn.Read = []string{l.names.lock(key), l.names.line(key), l.names.taking(key)}
	txn.Else = append(txn.Read, l.as.place)
	next := ""
	if next = v.neighbour(l.as); next != "" {
		txn.Read = append(txn.Read, next)
	} else {
		txn.List = []Range{{Prefix: l.names.place(key, ""), Limit: page}}
	}
	answer, received, again, err := l.send(txn)
	if err != nil {
		return l.barely(err) || again, err
	}
	if !answer.Done {
		return l.missed(answer, received)
	}
	l.voided(answer)
	l.freed = true
	at := l.came(key, v.at, txn, answer)
	at.places = v.at.wrote(l.names, key, txn, answer, false)
	now := l.note(key, at, answer.Read, received)
	if at.lock, at.line, at.places = now.lock, now.line, now.places; at.line.Revision != v.at.line.Revision {
		at.full = !at.line.There() // others may have come, also before its own locker
	}
	if len(txn.List) > 0 && len(answer.Lists[0]) < page {
		at.places = places{tick: at.tick, taken: []held{}, allTaken: true}
		for _, e := range answer.Lists[0] {
			at.taken = append(at.taken, placeIn(e))
		}
	}
	l.at = at
	l.wroteLock(key, at, v, nil, received)
	l.after = next != "" && at.revision(next) != Revision{} || at.allTaken && len(at.taken) > 0
	changed := at.line.Revision != v.at.line.Revision || at.lock.Revision != v.at.lock.Revision
	if !changed && !l.after && !at.line.There() { // no locker waits
		l.clean(v)
		return false, nil
	}
	return l.why == nil && (changed || !l.after), nil
}

// neighbour is the name of another place that is taken, as far as is known.
func (v *view) neighbour(as held) string {
	for _, h := range v.holds {
		if h.place != "" && h.place != as.place && h.For == "" && h.Owner != as.Owner {
			return h.place
		}
	}
	return ""
}

// missed learns from a transaction that was not executed.
func (l *leaves) missed(answer Answer, received time.Time) (again bool, err error) {
	key := l.ask.Key
	at := l.note(key, l.at, answer.Read, received)
	if !l.freed && at.revision(l.as.place) != l.as.at {
		if h, ours, _ := l.holderIn(at, l.as.Owner); ours && h.place == l.as.place { // its lease was made longer
			l.as, l.at = h, at
			return true, nil
		}
		if l.unknown { // by an earlier try
			l.freed = true
			return true, nil
		}
		return false, l.noPlace(at)
	}
	l.again++
	before := l.at
	at.come, at.all, at.upTo = before.come, before.all, before.upTo
	at.full = before.full && at.line.Revision == before.line.Revision
	read := map[string]bool{}
	come := []Entry{} // not nil even if none is left: the ones that were seen last have gone
	for _, e := range answer.Read {
		if strings.HasPrefix(e.Name, l.names.waits(key, "")) {
			if read[e.Name] = true; e.There() { // it may have come again
				come = append(come, e)
			}
		}
	}
	for _, e := range at.come {
		if !read[e.Name] {
			come = append(come, e)
		}
	}
	if l.at = at; len(read) > 0 {
		l.at.come = come
	}
	if l.freed && len(read) == 0 { // the lock or its line has changed
		l.at.allTaken, l.at.full, l.known = false, false, false
	}
	return true, nil
}

// commit sends a transaction that gives up the place, unless that was given up before, and calls others.
func (l *leaves) commit(v *view, txn Txn, notices keystate.Notices) (again bool, err error) {
	key := l.ask.Key
	var mine []Op
	if !l.freed {
		txn.If = append(txn.If, Condition{l.as.place, l.as.at})
		if !writes(txn, l.as.place) {
			txn.Then = append(txn.Then, Op{Name: l.as.place, Delete: true})
		}
		txn.Then = append(txn.Then, l.noting(key, l.ask.Owner, notices)...)
		mine = l.voiding()
		txn.Then = append(mine, txn.Then...)
	}
	txn.Else = []string{l.names.lock(key), l.names.line(key), l.names.taking(key), l.as.place}
	for i, w := range v.line.since(v.gone) {
		if i < 2*max(driver.KeptFor, v.Permits) && i < 16 {
			txn.Else = append(txn.Else, l.names.waits(key, w.Name.ID()))
		}
	}
	if l.ask.Waiter != "" {
		l.lists(key, l.ask.Waiter, true)
	}
	answer, received, again, err := l.send(txn)
	switch {
	case err != nil:
		return l.barely(err) || again, err
	case !answer.Done:
		return l.missed(answer, received)
	}
	if !l.freed {
		l.voided(answer)
	}
	l.freed = true
	v.at.places = v.at.wrote(l.names, key, txn, answer, false)
	if l.ask.Kind == driver.Permit { // else it would count as taken
		v.at.places = v.at.with(Entry{Name: l.as.place + gone})
	}
	l.noteWritten(v, txn, answer, received)
	for i, op := range txn.Then {
		if h := (held{}); l.names.isPlace(key, op.Name) && !op.Delete {
			h = placeIn(Entry{Name: op.Name, Value: op.Value, Revision: answer.Written[i]})
			l.guardPlace(key, h)
		}
	}
	return false, nil
}
