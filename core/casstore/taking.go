package casstore

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/keystate"
)

// lookPlace is [claim.look] for a place.
func (c *claim) lookPlace() (reply driver.Reply, again bool, err error) {
	if c.unknown && !c.resolved { // the place that was tried may be taken by now
		c.resolved = true
		return afresh(c.read())
	}
	v, err := c.open(c.ask.Key, c.at, c.received)
	if err != nil {
		return reply, false, err
	}
	if dead := v.dead(false); len(dead) > 0 && !c.received.IsZero() {
		again, err = c.bury(v, dead)
		return reply, again, err
	}
	v.own, v.place, v.atMost = c.ask.Waiter.ID(), true, c.ask.AtMost
	as, ours := v.hold(c.ask.Owner)
	switch {
	case ours && as.place != "" && c.received.IsZero():
		return afresh(c.read())
	case ours && as.place != "":
		return c.granted(as, driver.Reply{Granted: true, Number: c.ask.Number}), false, nil
	case c.ask.From != "":
		return c.movePlace(v)
	}
	// Where all permits are numbered as this owner numbers them, its place alone has to be free.
	exact := c.ask.Kind == driver.Permit && (c.ask.AtMost < v.Permits || v.shares())
	if exact && !v.at.allTaken {
		return afresh(c.listPlaces())
	}
	v.setPlaces(c.ask.Kind == driver.Permit)
	v.writers = v.rec.Reserved(v.now)
	if !c.entered && c.ask.Waiter != "" && c.ask.Kind == driver.Permit && v.queued() {
		c.entered = true // it comes into line first, and then looks whether a permit is free
		v.fill(c.ask.AtMost)
		reply, notices := v.rec.Acquire(c.ask, v.now)
		return c.refused(v, reply, notices)
	}
	rec := v.rec.Clone()
	reply, notices := v.rec.Acquire(c.ask, v.now)
	switch {
	case reply.Granted && (c.missed > 1 || c.missed > 0 && v.at.lock.There()) && c.ask.Kind == driver.Permit && c.comesFirst(v):
		v.rec = *rec // others have changed the lock, and may do so each time
		return c.lineUp(v)
	case c.lined && !reply.Granted:
		c.lined = false
		notices.Calls = append(notices.Calls, c.hints(v)...)
		return c.refused(v, reply, notices)
	case !reply.Full || c.listed:
	case c.ask.Waiter != "" && !c.entered:
		c.entered = true
		return c.refused(v, reply, notices)
	default:
		return afresh(c.listPlaces())
	}
	place, free := v.pick(c.ask)
	switch tried := c.hold.tried; {
	case !c.unknown || tried.Name == "":
	case c.at.revision(tried.Name) == tried.Revision:
		place, free = held{place: tried.Name, at: tried.Revision}, true // it may be executed yet, but not after this one
	case reply.Granted: // it may be executed when the place is free again, so the owner must not have another one
		return driver.Reply{}, false, errTried
	}
	if reply.Granted && c.missed > 1 && v.listed(c.ask.Waiter) && c.ask.Kind == driver.Permit && place.For == "" {
		v.fill(c.ask.AtMost) // others have taken the free places: it is called
		reply, notices = v.rec.Acquire(c.ask, v.now)
	}
	if reply.Granted && !free { // but the places of the dead are in the way
		return afresh(c.listPlaces())
	}
	if !reply.Granted {
		return c.refused(v, reply, notices)
	}
	want := held{Owner: c.ask.Owner, Process: c.process, Lease: whole(c.ask.TTL).Milliseconds(), place: place.place, at: place.at}
	txn := v.write(notices, want, false)
	if v.unsure {
		return afresh(c.list())
	}
	if exact || v.at.allTaken && v.at.tick.Value == c.process {
		txn.If = append(txn.If, Condition{v.names.taking(v.key), v.at.tick.Revision})
	}
	txn.Then = append(txn.Then, v.takes())
	return c.takePlace(v, txn, want, reply)
}

// errTried says that an owner may yet get the place that it has tried.
var errTried = fmt.Errorf("%w: %w", driver.ErrUnavailable, errors.New("no answer to a request for a place, which another owner has now"))

// revision is the last known revision of a place.
func (p places) revision(name string) Revision {
	if i := slices.IndexFunc(p.taken, func(h held) bool { return h.place == name }); i >= 0 {
		return p.taken[i].at
	}
	return Revision{}
}

// shares reports whether an owner shares the lock, as far as is known.
func (v *view) shares() bool {
	return slices.ContainsFunc(v.holds, func(h held) bool { return strings.Contains(h.place, "~") })
}

// few is the number of permits if a request reads all of them, else zero.
func (c *claim) few() int {
	if c.ask.Kind != driver.Permit || c.ask.AtMost > 16 {
		return 0
	}
	return c.ask.AtMost
}

// queued reports whether others wait for permits, and none is kept for the locker that asks.
func (v *view) queued() bool {
	line := v.line.since(v.gone)
	return v.Places && len(line) > 0 && find(line, v.own) < 0 &&
		!slices.ContainsFunc(v.holds, func(h held) bool { return h.For != "" && h.For.ID() == v.own })
}

// fill has the record know so many places as if all permits were taken.
func (v *view) fill(permits int) {
	owners := make([]string, permits)
	for i := range owners {
		owners[i] = others
	}
	v.rec.SetPlaces(owners, v.now)
	v.rec.SetEnds(func(string) time.Time { return v.now.Add(dead) })
}

// refused writes the changes of a request for a place that is refused, if there are any.
func (c *claim) refused(v *view, reply driver.Reply, notices keystate.Notices) (driver.Reply, bool, error) {
	v.setPlaces(false)
	txn := v.write(notices, held{}, !reply.Granted)
	switch {
	case v.unsure:
		return afresh(c.list())
	case len(txn.Then) > 0:
		return c.enter(v, txn, reply)
	}
	if c.beats = v.beats(); c.received.IsZero() || len(c.beats) > 0 && !c.looked && !c.entered {
		c.looked = !c.received.IsZero()
		again, err := c.read()
		return reply, again, err
	}
	return v.refusal(reply), false, nil
}

// movePlace has an owner take over the place of another one.
func (c *claim) movePlace(v *view) (reply driver.Reply, again bool, err error) {
	from, known := v.hold(c.ask.From)
	if !known && !c.listed {
		return afresh(c.listPlaces())
	}
	reply, notices, err := v.rec.Move(c.ask, v.now)
	if err == nil && from.place == "" {
		err = driver.ErrDeleted
	}
	if err != nil {
		again, err = c.refuses(err)
		return driver.Reply{}, again, err
	}
	want := held{Owner: c.ask.Owner, Process: c.process, Lease: whole(c.ask.TTL).Milliseconds(), place: from.place, at: from.at}
	return c.takePlace(v, Txn{Then: c.noting(c.ask.Key, c.ask.From, notices)}, want, reply)
}

// takePlace sends the transaction that takes a place, unless the release of its owner has begun.
func (c *claim) takePlace(v *view, txn Txn, want held, granted driver.Reply) (reply driver.Reply, again bool, err error) {
	if c.void, err = c.unreleased(c.hold); err != nil {
		return reply, false, err
	}
	void := c.names.void(c.process)
	c.chooses(want)
	txn.If = append(txn.If, Condition{void, c.void}, Condition{want.place, want.at})
	txn.Then = append(txn.Then, Op{Name: want.place, Value: want.text()})
	txn.Then = append(txn.Then, c.beat(whole(c.ask.TTL))...)
	txn.Read = []string{c.names.line(c.ask.Key)}
	txn.Else = append(c.reads(), void)
	answer, received, again, err := c.send(txn)
	switch {
	case err != nil:
		c.resolved = false
		return reply, again, err
	case !answer.Done:
		c.sawVoid(c.void, answer.Read[len(answer.Read)-1].Revision)
		c.learn(answer.Read, received)
		if c.missed++; c.at.all != v.at.all { // the line was written anew
			return afresh(c.list())
		}
		return reply, true, nil
	}
	before := v.at
	if !before.lock.There() {
		before.places = places{taken: []held{}, allTaken: true} // none can have been taken
	}
	c.at = c.came(c.ask.Key, before, txn, answer)
	for i, op := range txn.Then {
		if op.Name == c.names.lock(c.ask.Key) {
			c.at.lock = Entry{Name: op.Name, Value: op.Value, Revision: answer.Written[i]}
		}
	}
	c.at.places = before.wrote(c.names, c.ask.Key, txn, answer, !before.lock.There())
	if answer.Read[0].Revision != c.at.line.Revision {
		c.at.line, c.at.full = answer.Read[0], !answer.Read[0].There()
	}
	as, _, _ := c.holderIn(c.at, c.ask.Owner)
	c.wroteLock(c.ask.Key, c.at, v, append(v.holds, as), received)
	return c.granted(as, granted), false, nil
}

// chooses notes the place that a transaction is about to take.
func (c *claim) chooses(want held) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hold.tried = Condition{want.place, want.at}
}

// bury makes places of the dead free.
func (c *claim) bury(v *view, dead []held) (again bool, err error) {
	defer func(unknown bool) { c.unknown = unknown }(c.unknown) // it takes no place
	txn := v.burial(dead)
	answer, received, again, err := c.send(txn)
	if err != nil {
		return again, err
	}
	if !answer.Done {
		c.learn(answer.Read, received)
		return true, nil
	}
	c.at.places = v.at.wrote(c.names, c.ask.Key, txn, answer, false)
	return true, nil
}

// listPlaces looks at the lock and its places.
func (c *claim) listPlaces() (again bool, err error) {
	at, received, again, err := c.tries.listPlaces(c.ask.Key, c.at, !c.received.IsZero())
	if err == nil {
		c.at, c.received, c.listed = at, received, true
	}
	return again, err
}

// patient gives a locker that has lost its place or its turn the time that it needs at least. It does not know the time when
// it asks for the first time, and would lose each turn before it knew of the turn.
func (s *Store) patient(w driver.Waiter, kind driver.Kind) driver.Waiter {
	trip := s.RoundTrip()
	if trip == 0 || !w.Patient() || w.Patience() >= 2*trip {
		return w
	}
	longer := driver.NewWaiter(w.ID(), kind, 3*trip)
	if w.TakesOffers() {
		return longer.TakingOffers()
	}
	return longer
}

// settle looks whether a transaction that has ended with [ErrSettled] has taken the lock.
// Nothing is on its way any more, so the look tells. It writes nothing: why may be that the
// server has no space.
func (c *claim) settle(why error) (reply driver.Reply, again bool, err error) {
	for again = true; again; {
		if again, err = c.read(); err != nil {
			continue
		}
		if as, ok, err := c.holderIn(c.at, c.ask.Owner); err == nil && ok {
			return c.granted(as, driver.Reply{Granted: true, Number: c.ask.Number}), false, nil
		}
		return reply, false, why
	}
	c.unknown = true
	return reply, false, why
}
