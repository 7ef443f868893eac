package casstore

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/keystate"
	"github.com/interlock-go/interlock/core/internal/host"
)

// view is a key as this store sees it: the record of the rules, with instants of the store's clock.
type view struct {
	*Store
	key   string
	at    found
	rec   keystate.Record
	holds []held
	gone  int64 // the lockers up to this number wait no more
	line  line
	signs map[string]sign // of the holders, by owner
	base  time.Time       // when the lock was first seen like that
	now   time.Time
	was   string // the text of the record
	token int64  // the last of the record
	own   string // the id of the locker that asks, or leaves
	gap   bool   // the lock is free, and lockers have come into line since this process gave it up
	spread
	needs
}

// needs say how much of the line has to be known.
type needs struct {
	first   bool   // the locker that asks goes before all others
	ordered bool   // the order of the line decides about a grant
	writers bool   // a grant depends on whether any locker wants the lock: a place in a lock that was kept
	unsure  bool   // a transaction that was made needs more of the line than is known: it is not to be sent
	theirs  bool   // the transaction compares entries of lockers in line
	leaver  string // the owner of the place that a release gives up
	place   bool   // a locker comes out of the line for a place: others may do so at the same time
	atMost  int    // how many permits there are for the locker that asks
}

// open makes a view of a key that was found so when an answer was received. Where received is zero, it
// is a guess.
func (s *Store) open(key string, at found, received time.Time) (*view, error) {
	at = s.known(key, at)
	v := &view{Store: s, key: key, at: at, now: s.now(), signs: map[string]sign{}}
	if err := v.line.read(at.come); err != nil {
		return nil, err
	}
	switch v.gone = v.newest()*perRevision + perRevision - 1; {
	case !at.lock.There() && at.line.There() && s.freedLately(key):
		// They have come since. Where they are not all known, none counts until they are listed.
		if v.gap = true; at.full {
			v.gone = 0
		}
	case at.lock.There():
		var in value
		rec, err := in.read(at.lock)
		if err != nil {
			return nil, err
		}
		v.rec, v.holds, v.gone, v.spread = rec, in.Holds, in.Gone, in.spread
	}
	v.readPlaces()
	if line := v.line.since(v.gone); len(line) > 0 && line[len(line)-1].Number > at.upTo {
		at.full = false // one has come since, and so may others
	}
	v.at = at
	v.rec.SetNext(nextToken(at))
	var since map[string]time.Time
	var waits map[int64]time.Time
	if received.IsZero() {
		v.base, since, waits = s.remembered(key, at.lock)
	} else {
		v.base, since, waits = s.sawLock(key, at, v.holds, v.line.since(v.gone), received)
	}
	for i, w := range v.line.All {
		if seen, ok := waits[w.Number]; ok && v.now.Sub(seen) > host.OffersAfter {
			v.line.All[i].Name = w.Name.LeavingOffers()
		}
	}
	v.rec.Shift(v.base.Sub(written))
	v.was, v.ordered = v.text(v.base), v.rec.Ordered(v.now)
	v.token = v.rec.SetLast(0)
	v.rec.SetLast(v.token)
	for _, h := range v.holds {
		first := since[h.Owner]
		if first.IsZero() {
			first = v.now
		}
		v.signs[h.Owner] = s.signOf(h, first, v.now)
	}
	v.signs[others] = sign{mine: true, ends: v.now.Add(dead)}
	v.rec.SetWaiting(names(v.line.since(v.gone)))
	v.rec.SetEnds(func(owner string) time.Time { return v.signs[owner].ends })
	v.setPlaces(false)
	return v, nil
}

// text is the text of the record, as if it were written at an instant.
func (v *view) text(at time.Time) string {
	r := v.rec.Clone()
	r.SetEnds(func(string) time.Time { return time.Time{} })
	if !r.Free() {
		r.SetPlaces(nil, time.Time{})
	}
	r.SetWaiting("")
	r.Shift(written.Sub(at))
	text, err := r.AppendText(nil)
	if err != nil {
		return err.Error() // not a text that a store reads
	}
	return string(text)
}

// hold returns a holder.
func (v *view) hold(owner string) (h held, ok bool) {
	if i := slices.IndexFunc(v.holds, func(h held) bool { return h.Owner == owner }); i >= 0 {
		return v.holds[i], true
	}
	return h, false
}

// listed reports whether a locker waits in line.
func (v *view) listed(waiter driver.Waiter) bool {
	return slices.ContainsFunc(v.line.since(v.gone), func(w listed) bool { return w.Name.ID() == waiter.ID() })
}

// waits reports whether lockers wait in line.
func (v *view) waits() bool { return len(v.line.since(v.gone)) > 0 }

// knows reports whether all lockers up to a number are known.
func (v *view) knows(number int64) bool { return v.at.full || number <= v.at.upTo }

// numberOf is the number of a locker in line, or a greater one than all if it is not there.
func (v *view) numberOf(id string) int64 {
	if line := v.line.since(v.gone); find(line, id) >= 0 {
		return line[find(line, id)].Number
	}
	return math.MaxInt64
}

// firstNumber is the number of the first locker in line, or a greater one than all.
func (v *view) firstNumber() int64 {
	if line := v.line.since(v.gone); len(line) > 0 {
		return line[0].Number
	}
	return math.MaxInt64
}

// write returns the transaction that writes the changes of a rule; without operations if there is
// nothing to write. The first operation is the lock's, if that has changed. comes is the holder that a
// grant adds. Where only a locker has come, and lineAlone is set, the transaction compares nothing, and so holds
// also if the lock changes meanwhile: its caller has to look at the lock after it. The transaction must not
// be sent if it makes the view unsure.
func (v *view) write(n keystate.Notices, comes held, lineAlone bool) (txn Txn) {
	owners, lock, tick := v.rec.Owners(), v.names.lock(v.key), v.names.line(v.key)
	if comes.Owner != "" && v.gap { // their turns have not begun
		line := v.line.since(v.gone)
		v.rec.SetWaiting(names(slices.DeleteFunc(slices.Clone(line), func(w listed) bool { return w.Name.ID() == v.own })))
	}
	var holds []held // in the entry of the lock
	var ends []Op
	was := slices.DeleteFunc(slices.Clone(v.holds), func(h held) bool { return h.place != "" })
	for _, h := range was {
		if slices.Contains(owners, h.Owner) {
			holds = append(holds, h)
			continue
		}
		ends = append(ends, h.ends(v.names, v.key)...)
		if g := v.signs[h.Owner]; !g.mine && !v.now.Before(g.ends) {
			txn.If = append(txn.If, g.beat) // the first sign of life would be a change
		}
	}
	if _, known := v.hold(comes.Owner); !known && comes.place == "" && slices.Contains(owners, comes.Owner) {
		holds = append(holds, comes)
	}
	next := v.spread
	switch {
	case comes.place != "":
		next.Places, next.Permits = true, max(next.Permits, v.atMost)
	case v.vacant() && (v.rec.Free() || len(holds) > 0):
		next = spread{}
	}
	if v.place { // its token is a revision, and the lock stays as it is
		v.rec.SetLast(v.token)
	}
	o, calls := v.reorder(), n.Freed && len(n.Calls) > 0
	unchanged := o.gone == v.gone && slices.Equal(holds, was) && next == v.spread && v.text(v.base) == v.was
	ended := !unchanged && len(holds) == 0 && v.rec.Idle(v.now) && !next.Places
	// Where no locker is called, or the releasing locker alone, no other may have come. A grant must pass no locker that
	// goes before it. And a line is written anew only as it is.
	others := slices.ContainsFunc(o.all, func(w listed) bool { return w.Name.ID() != v.own })
	alone := ended || o.whole || !unchanged && v.rec.Free() && (!others || !v.rec.Reserved(v.now)) || n.Freed && !calls ||
		comes.Owner != "" && v.ordered && v.numberOf(v.own) > v.at.upTo
	closes := v.Places && !next.Places
	v.unsure = (alone || v.first && len(o.ops) > 0) && !v.at.full || o.gone > v.gone && !v.knows(o.gone) ||
		calls && !v.knows(v.firstNumber()) || v.gap && !unchanged && !v.at.full ||
		comes.Owner != "" && v.writers && !v.at.full
	switch {
	case unchanged && len(o.ops) == 0 && comes.place == "":
		txn.If = nil
	case !unchanged || !lineAlone || o.whole || comes.place != "":
		txn.If = append(txn.If, Condition{lock, v.at.lock.Revision})
	default:
		txn.If = nil
	}
	if closes {
		txn.If = append(txn.If, Condition{v.names.taking(v.key), v.at.tick.Revision})
		ends = append(ends, Op{Name: v.names.taking(v.key), Delete: true})
	}
	if alone {
		txn.If = append(txn.If, Condition{tick, v.at.line.Revision})
	} else if o.gone > v.gone || find(v.line.since(v.gone), v.own) >= 0 && find(o.all, v.own) < 0 {
		// A locker that has gone must not be in a line that another process has written since.
		txn.If = append(txn.If, Condition{v.names.inOne(v.key), v.at.all})
	}
	for i, w := range o.all {
		if i < driver.KeptFor && calls && !o.whole && w.Name.Place() && w.apart && w.At != 0 && w.Name.ID() != v.own {
			// It may have taken a place, and left the line.
			txn.If, v.theirs = append(txn.If, v.names.entry(v.key, w)), true
		}
	}
	switch {
	case unchanged:
	case ended:
		txn.Then = append([]Op{{Name: lock, Delete: true}}, ends...)
		for _, e := range v.at.come[:min(len(v.at.come), batch)] {
			txn.Then = append(txn.Then, Op{Name: e.Name, Delete: true})
		}
		if o.ops, o.comes = nil, false; v.at.line.There() {
			txn.Then = append(txn.Then, Op{Name: tick, Delete: true})
		}
	default:
		gone := o.gone
		if !v.at.lock.There() {
			if gone = 0; len(v.line.since(v.gone)) > 0 {
				gone = max(o.gone, v.firstNumber()-1)
			}
			if !alone { // a locker that comes now must be after that number
				txn.If = append(txn.If, Condition{tick, v.at.line.Revision})
			}
		}
		txn.Then = append([]Op{{Name: lock, Value: v.value(holds, gone, next)}}, ends...)
	}
	txn.Then = append(txn.Then, o.ops...)
	if o.comes {
		txn.Then = append(txn.Then, Op{Name: tick, Value: v.process})
	}
	if first := (Op{}); len(txn.Then) > 0 || len(n.Calls) > 0 {
		if !unchanged {
			first = txn.Then[0]
		}
		txn.Then = append(txn.Then, v.calls(n, o, first)...)
		for _, op := range v.passedOver() {
			// A process that is called anyway is called once: a transaction writes an entry once.
			if !writes(txn, op.Name) {
				txn.Then = append(txn.Then, op)
			}
		}
	}
	return txn
}

// looksAt are the names of the entries to look at if a transaction fails: of the key, and of the beats that it compares.
func (v *view) looksAt(txn Txn) []string {
	names := []string{v.names.lock(v.key), v.names.line(v.key)}
	for _, c := range txn.If {
		if strings.HasPrefix(c.Name, v.names.beats()) {
			names = append(names, c.Name)
		}
	}
	return names
}

// stale reports whether the line has to be listed again after a transaction that was not executed: the lock is as it
// was, and the line may have been written since it was listed.
func (v *view) stale(answer Answer) bool {
	return len(v.at.come) > 0 && answer.Read[0].Revision.Number == v.at.lock.Revision.Number &&
		(!v.at.full || answer.Read[1].Revision.Number != v.at.line.Revision.Number)
}

// learn takes these entries out of an answer.
func (v *view) learn(txn Txn, answer Answer, received time.Time) found {
	for i, e := range answer.Read[2:] {
		v.sawBeat(slices.Concat(txn.Else, txn.Read)[2+i], e.Revision, received)
	}
	return found{lock: answer.Read[0], line: answer.Read[1]}
}

// writes reports whether a transaction writes an entry.
func writes(txn Txn, name string) bool {
	return slices.ContainsFunc(txn.Then, func(op Op) bool { return op.Name == name })
}

// passedOver are the operations that call the lockers that have lost their places in line: their turns
// have ended, and no release calls them. They ask again.
func (v *view) passedOver() (ops []Op) {
	stay := map[string]bool{v.own: true}
	for w := range v.rec.Waiting().All() {
		stay[w.ID()] = true
	}
	to := called{}
	for _, w := range v.line.since(v.gone) {
		if !stay[w.Name.ID()] {
			to.add(w.Process, w.Name, driver.Call{}, call{})
		}
	}
	return to.ops(v.names, v.key)
}

// value is the value of the lock as it is now.
func (v *view) value(holds []held, gone int64, next spread) string {
	text, err := json.Marshal(value{Holds: holds, Gone: gone, Lock: json.RawMessage(v.text(v.now)), spread: next})
	if err != nil {
		return fmt.Sprintf("interlock: %v", err) // not a value that a store reads
	}
	return string(text)
}

// calls are the operations that call lockers, each in its process. first is the operation on the lock, if there is one.
func (v *view) calls(n keystate.Notices, now order, first Op) (ops []Op) {
	of := map[string]listed{}
	for _, w := range slices.Concat(v.line.All, now.all) {
		of[w.Name.ID()] = w
	}
	hints, to := map[string][]string{}, called{}
	for _, turn := range v.turns(n) {
		w, known := of[turn.To]
		if owner, hint := turn.Hint(); hint {
			process := w.Process
			if turn.What == driver.Wanted {
				h, _ := v.hold(owner)
				process = h.Process
			}
			if process != "" {
				hints[process] = append(hints[process], owner)
			}
			continue
		}
		if !known { // the releasing locker
			w = listed{Name: driver.Waiter(turn.To), Process: v.process}
		}
		c := call{InOne: v.at.all.Number, Line: v.part(now)}
		if first.Name == v.names.lock(v.key) {
			c.Lock, c.Version = first.Value, v.at.lock.Revision.next() // empty for a lock that is deleted
		}
		if now.whole {
			c.InOne = thisCall
		}
		if turn.What == driver.Offered {
			c.Offer = turn.Token
		}
		to.add(w.Process, w.Name, turn.Call, c)
	}
	for process, owners := range hints {
		ops = append(ops, Op{Name: v.names.call(process, v.key) + hintPart, Value: strings.Join(owners, ","), Brief: true})
	}
	return append(ops, to.ops(v.names, v.key)...)
}

// turns are the calls to make now. While the lock is kept, this process calls the lockers one after the other (guard), but
// neighbours that want places together.
func (v *view) turns(n keystate.Notices) []keystate.Call {
	if !n.Freed || !v.rec.Reserved(v.now) || len(n.Calls) == 0 {
		return n.Calls
	}
	all, next := n.Calls[:1:1], v.rec.Waiting()
	for name := range next.All() {
		if !name.Place() {
			break
		}
		if c, called := next.Call(name.ID(), 0); called && name.ID() != all[0].To {
			all = append(all, keystate.Call{To: name.ID(), Call: c})
		}
	}
	return all
}
