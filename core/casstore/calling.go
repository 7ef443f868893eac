package casstore

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/keystate"
)

// again has the locker of a release come into line.
func (v *view) again(l *leaves) []Op {
	if l.ask.Waiter == "" || l.freed || find(v.line.since(v.gone), v.own) >= 0 {
		return nil
	}
	w := listed{Name: l.ask.Waiter.AtPlaces(), Process: v.process}
	return []Op{{Name: v.names.waits(v.key, v.own), Value: w.text()}, {Name: v.names.line(v.key), Value: v.process}}
}

// leaving is the transaction that gives a place up while others have places: it calls the next lockers, and takes them
// out of the line. The first one has the place, if that is of a permit.
func (v *view) leaving(l *leaves, n keystate.Notices) (txn Txn, lockers int) {
	list := v.line.since(v.gone)
	txn.Then = v.again(l)
	to := called{}
	for _, turn := range n.Calls {
		i := find(list, turn.To)
		if lockers++; lockers > 1 && !l.freed && l.ask.Kind == driver.Permit || turn.To == v.own {
			lockers--
			break
		}
		if i < 0 || list[i].Process == "" {
			continue
		}
		w := list[i]
		c := to[w.Process]
		c.Lock, c.At, c.Version = v.at.lock.Value, v.at.lock.Revision.Number, v.at.lock.Revision.Version
		c.Age = v.now.Sub(v.base).Milliseconds()
		c.InOne = v.at.all.Number
		c.Line = v.rest(slices.Delete(slices.Clone(list), i, i+1)[max(0, i-driver.KeptFor):]) // the first ones are called by others meanwhile
		if w.apart && w.At != 0 && (l.ask.Kind == driver.Permit || l.again == 0) {
			at := v.names.entry(v.key, w)
			txn.If, txn.Then, c.Out = append(txn.If, at), append(txn.Then, Op{Name: at.Name, Delete: true}), true
		}
		if l.ask.Kind == driver.Permit && !l.freed && lockers == 1 {
			kept := held{For: w.Name, Process: v.process, Lease: keptFor(w.Name), place: l.as.place}
			txn.Then = append(txn.Then, Op{Name: l.as.place, Value: kept.text()})
			c.Place, c.PlaceVersion = strings.TrimPrefix(l.as.place, v.names.place(v.key, "")), l.as.at.next()
		}
		to.add(w.Process, w.Name, turn.Call, c)
	}
	txn.Then = append(txn.Then, to.ops(v.names, v.key)...)
	return txn, lockers
}

// keptFor is for how many milliseconds a place is kept for a locker.
func keptFor(w driver.Waiter) int64 {
	if !w.Patient() {
		return guardPlaces.Milliseconds()
	}
	return max(1, w.Patience().Milliseconds())
}

// rest is the beginning of a part of the line, for a call.
func (v *view) rest(list []listed) []listed {
	for i, w := range list[:min(len(list), ahead)] {
		if !v.knows(w.Number) || !w.apart {
			return list[:i]
		}
	}
	return list[:min(len(list), ahead)]
}

// guardPlace sees to it that a place which is kept for a locker goes to the next one if that does not come.
func (s *Store) guardPlace(key string, kept held) {
	time.AfterFunc(max(guardPlaces, kept.lease()), func() { s.background(func() { s.passOn(key, kept) }) })
}

// guardPlaces is after how long a process looks at the least whether a locker has come that it has called.
const guardPlaces = time.Second

// passOn gives a place that is kept for a locker to the next one, unless it was taken.
func (s *Store) passOn(key string, kept held) {
	p := &parting{
		Store: s, tries: tries{store: s, deadline: time.Now().Add(patience * s.wait())},
		ask: driver.ReleaseRequest{Key: key, Owner: kept.Owner, Kind: driver.Permit}, at: s.lastSeen(key),
	}
	if err := p.vacate(kept); err != nil && !errors.Is(err, driver.ErrNotOwner) {
		s.Warn("a place that is kept for a locker could not be given to the next one", err)
	}
}

// mostCollisions is the maximum number of tries of a release to call a locker that no other release calls.
const mostCollisions = 6

// mixed is the line with any of the first lockers that want permits before the others: several releases call
// different ones. A stale line is as the release saw it that has called this process: the holders of the other permits
// have called its first lockers since.
func (v *view) mixed(stale bool) []listed {
	line, n := slices.Clone(v.line.since(v.gone)), 0
	for n < len(line) && n < 2*max(driver.KeptFor, v.Permits) && n < ahead && line[n].Name.Place() {
		n++
	}
	if n > 1 {
		i := rand.N(n)
		if stale {
			i = min(n-1, max(v.Permits-1, 0)+rand.N(v.Permits+1))
		}
		w := line[i]
		line = slices.Insert(slices.Delete(line, i, i+1), 0, w)
	}
	return line
}

// cleanAfter is after how long a process looks whether it was the last that had a place.
const cleanAfter = time.Second

// clean sees to it that a lock without places goes. It may have been left to no owner, or to owners that see to it.
func (l *leaves) clean(v *view) {
	s, key := l.Store, l.ask.Key
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cleaning[key] {
		return
	}
	if s.cleaning == nil {
		s.cleaning = map[string]bool{}
	}
	s.cleaning[key] = true
	time.AfterFunc(cleanAfter, func() {
		s.mu.Lock()
		delete(s.cleaning, key)
		holds := false
		for _, h := range s.holds {
			holds = holds || h.key == key
		}
		s.mu.Unlock()
		if holds { // its release sees to it
			return
		}
		s.background(func() {
			p := *l.parting
			p.tries = tries{store: s, deadline: time.Now().Add(patience * s.wait())}
			p.ask = driver.ReleaseRequest{Key: key, Owner: l.ask.Owner, Kind: l.ask.Kind}
			last := leaves{parting: &p, as: l.as, at: found{lock: s.lastSeen(key).lock}, freed: true}
			again := last.at.lock.There()
			for round := 0; again && round < mostCollisions; round++ {
				again, _ = last.round(round)
			}
		})
	})
}
