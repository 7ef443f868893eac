package casstore

import (
	"fmt"
	"time"

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
	beat     string    // of a lock: the name of its holder's beat
	used     time.Time // when a caller asked for it last
	lease    time.Duration
}

// sightings are the last known entries of other processes. A lock is theirs for as long as
// it, or the beat of its holder, changes.
type sightings struct {
	locks   map[string]*sighting // by key
	beats   map[string]*sighting // by name
	pruneAt int
}

// sawLock notes that a key's lock had a revision when something was received.
func (s *Store) sawLock(key string, at Revision, as holding, received time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seen.locks)+len(s.seen.beats) >= s.seen.pruneAt {
		s.seen.prune(received)
	}
	beat := s.names.beat(as.process, as.lease)
	lock := s.seen.locks[key]
	if lock == nil || lock.revision.Number < at.Number { // else a member that lags has returned it
		s.seen.locks[key] = &sighting{revision: at, at: received, beat: beat, used: received, lease: as.lease}
	} else {
		lock.used = received
	}
	if s.seen.beats[beat] != nil {
		s.seen.beats[beat].used = received
	}
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

// lastBeat is the name of the beat that is to be read with a key's lock; empty if the lock
// was not seen lately.
func (s *Store) lastBeat(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if lock := s.seen.locks[key]; lock != nil {
		return lock.beat
	}
	return ""
}

// lastLock is the revision of a key's lock that was seen last.
func (s *Store) lastLock(key string) Revision {
	s.mu.Lock()
	defer s.mu.Unlock()
	if lock := s.seen.locks[key]; lock != nil {
		return lock.revision
	}
	return Revision{}
}

// silent returns for how long a lock must still be silent before it can be taken over: its
// revision and its holder's beat have to stay as they are for the lease, and for what two
// clocks may differ. last is the beat that must not have changed.
func (s *Store) silent(key string, at Revision, beatName string, lease time.Duration) (left time.Duration, last Revision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	lock, beat := s.seen.locks[key], s.seen.beats[beatName]
	if lock == nil || beat == nil || lock.revision != at {
		return lease, last // it has changed under way
	}
	since := lock.at
	if beat.at.After(since) {
		since = beat.at
	}
	return lease + clock.Drift(lease) - s.now().Sub(since), beat.revision
}

// stranger says for how long a caller must wait to know whether the holder lives, if the store
// has seen no sign of life of it yet. It is empty once there was one.
func (s *Store) stranger(key, beatName string, left time.Duration) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	lock, beat := s.seen.locks[key], s.seen.beats[beatName]
	if lock == nil || beat == nil || beat.changed {
		return ""
	}
	return fmt.Sprintf("the store does not know whether the holder lives: a caller that waits for %v gets the lock of a dead one",
		left.Round(time.Millisecond))
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
