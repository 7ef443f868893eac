package casstore

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
)

const (
	// pruneAt is a number of sightings. With so many the store looks for old ones for the
	// first time.
	pruneAt = 1024
	// remember is for how long a sighting is kept that no caller asks for. A process that
	// asks for a lock less often than that begins to count anew each time.
	remember = 10 * time.Minute
)

// sighting is when a revision was seen first, by the clock of the store: when the reply
// came that showed it. The entry had been written by then, so a lease that counts from
// there has ended for its holder, too.
type sighting struct {
	revision Revision
	at       time.Time
	changed  bool      // it was seen at another revision before
	used     time.Time // when a caller asked for it last
	lease    time.Duration

	// Of a lock:
	found found
	holds map[string]time.Time // when each holder was seen first
	waits map[int64]time.Time  // and each locker in line, by number
}

// found has the entries of a key in an answer.
type found struct {
	lock Entry
	line Entry    // that is written whenever a locker comes
	come []Entry  // the lockers that are known; it is not changed any more
	all  Revision // of the entry with all lockers of the line, as it was when they were listed
	full bool     // these are all
	upTo int64    // or else all up to this number
	places
}

// sightings are the last known entries of other processes. A lock is theirs for as long as
// it shows them, and the beat of the holder changes.
type sightings struct {
	locks   map[string]*sighting // by key
	beats   map[string]*sighting // by name
	pruneAt int
}

// sawLock notes that a key was found so when something was received. It returns since when the lock is
// known to be as it is, and since when each holder holds it and each locker waits.
func (s *Store) sawLock(
	key string, at found, holds []held, line []listed, received time.Time,
) (base time.Time, since map[string]time.Time, waits map[int64]time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seen.locks)+len(s.seen.beats) >= s.seen.pruneAt {
		s.seen.prune(received)
	}
	now := &sighting{revision: at.lock.Revision, at: received, used: received, found: at, holds: map[string]time.Time{}, waits: map[int64]time.Time{}}
	last := s.seen.locks[key]
	if last == nil {
		last = &sighting{revision: now.revision, at: received}
	}
	if last.revision.Number == now.revision.Number && last.at.Before(now.at) {
		now.at = last.at
	}
	for _, h := range holds {
		if now.holds[h.Owner] = received; h.For != "" {
			now.holds[h.Owner] = s.now() // a call shows a lock as it was seen earlier
		}
		if !last.holds[h.Owner].IsZero() {
			now.holds[h.Owner] = last.holds[h.Owner]
		}
		now.lease = max(now.lease, h.lease())
		if beat := s.seen.beats[s.names.beat(h.Process, h.lease())]; beat != nil {
			beat.used, beat.lease = received, h.lease()
		}
	}
	for _, w := range line {
		if now.waits[w.Number] = received; !last.waits[w.Number].IsZero() {
			now.waits[w.Number] = last.waits[w.Number]
		}
	}
	if !at.lock.There() || at.lock.Revision.Number >= last.revision.Number { // else it comes from an answer that came late
		s.seen.locks[key] = now
	}
	return now.at, now.holds, now.waits // they are not changed any more
}

// known completes the entries of a key by the lockers that were in line when it was seen last.
func (s *Store) known(key string, at found) found {
	last := s.lastSeen(key)
	if at.taken == nil && !at.allTaken {
		at.places = last.places
	}
	if at.full || at.come != nil {
		return at
	}
	if at.come, at.all, at.upTo = last.come, last.all, last.upTo; !at.line.There() {
		at.come, at.all, at.full = nil, Revision{}, true
	} else if last.full {
		at.full, at.upTo = last.line.Revision == at.line.Revision, last.line.Revision.Number*perRevision+1
	}
	return at
}

// came adds the entry of a locker of this process to a key that was found right after a transaction.
func (s *Store) came(key string, at found, txn Txn, answer Answer) found {
	at = s.known(key, at)
	for i, op := range txn.Then {
		if !strings.HasPrefix(op.Name, s.names.waits(key, "")) {
			continue
		}
		at.come = slices.DeleteFunc(slices.Clone(at.come), func(e Entry) bool { return e.Name == op.Name })
		if !op.Delete {
			at.come = append(at.come, Entry{Name: op.Name, Value: op.Value, Revision: answer.Written[i]})
		}
		if strings.HasSuffix(op.Name, "/"+allPart) {
			at.all = answer.Written[i]
		}
	}
	return at
}

// remembered returns what sawLock has returned about a lock; nothing if that was another revision.
func (s *Store) remembered(key string, lock Entry) (base time.Time, since map[string]time.Time, waits map[int64]time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := s.seen.locks[key]; last != nil && last.revision.Number == lock.Revision.Number {
		return last.at, last.holds, last.waits
	}
	return s.now(), nil, nil
}

// wroteLock notes a lock that this process has written. A key without holders and lockers is forgotten.
func (s *Store) wroteLock(key string, at found, v *view, holds []held, received time.Time) {
	if at.lock.There() {
		s.sawLock(key, at, holds, v.line.since(v.gone), received)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.seen.locks, key)
	if len(s.freed) >= mostFreed {
		clear(s.freed)
	}
	s.freed[key] = received
}

// mostFreed is the maximum number of keys in the map of keys that were lately given up.
const mostFreed = 64

// freedLately reports whether this process was the last to hold a lock, and gave it up with no locker in line, so lately
// that a locker which has come since waits for certain.
func (s *Store) freedLately(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.freed[key]
	return ok && s.now().Sub(at) < driver.OfferLasts/2
}

// sawBeat notes that a beat had a revision, or was not there, when something was received.
func (s *Store) sawBeat(name string, at Revision, received time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	beat := s.seen.beats[name]
	switch {
	case beat == nil:
		s.seen.beats[name] = &sighting{revision: at, at: received, used: received}
	case at.Number > beat.revision.Number, at == Revision{} && beat.revision != Revision{}:
		beat.revision, beat.at, beat.changed = at, received, true
	}
}

// lastSeen returns the entries of a key that were found last.
func (s *Store) lastSeen(key string) (at found) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if lock := s.seen.locks[key]; lock != nil {
		return lock.found
	}
	return at
}

// sign is the knowledge of a store about a holder.
type sign struct {
	mine  bool
	ends  time.Time // when others may take its hold, if neither the lock nor the beat changes
	beat  Condition // says that the beat has not changed
	known bool      // the beat has been looked at
	alive bool      // and has changed since
	stood time.Duration
}

// signOf returns the sign of a holder. Others may take its hold when the lock has shown the hold, and
// the beat has stayed as it is, for the lease and what two clocks may differ.
func (s *Store) signOf(h held, since, now time.Time) (g sign) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := s.names.beat(h.Process, h.lease())
	g.beat.Name, g.stood = name, now.Sub(since)
	if h.For != "" { // the transaction that kept it came before its call
		g.beat.Name, g.known, g.ends = "", true, since.Add(h.lease()+clock.Drift(h.lease())+callsLate)
		return g
	}
	if h.Process == s.process { // the store gives it up itself
		g.mine, g.ends = true, now.Add(2*firstPause)
		if own := s.holds[h.Owner]; own != nil && own.until.After(g.ends) {
			g.ends = own.until
		}
		return g
	}
	if beat := s.seen.beats[name]; beat == nil {
		since = now
	} else {
		g.known, g.alive, g.beat.Revision = true, beat.changed, beat.revision
		if beat.at.After(since) {
			since = beat.at
		}
	}
	g.ends = since.Add(h.lease() + clock.Drift(h.lease()))
	return g
}

// stranger says for how long a caller must wait to know whether the holder lives, if the store
// has seen no sign of life of it yet. It is empty once there was one.
func (g sign) stranger(now time.Time) string {
	if !g.known || g.alive {
		return ""
	}
	return fmt.Sprintf("the store does not know whether the holder lives: a caller that waits for %v gets the lock of a dead one",
		g.ends.Sub(now).Round(time.Millisecond))
}

// prune forgets what no caller asks for.
func (s *sightings) prune(now time.Time) {
	for _, kind := range []map[string]*sighting{s.locks, s.beats} {
		for name, seen := range kind {
			if now.Sub(seen.used) > max(remember, 2*seen.lease) {
				delete(kind, name)
			}
		}
	}
	s.pruneAt = max(pruneAt, 2*(len(s.locks)+len(s.beats)))
}
