package keystate

import (
	"errors"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// notesAt is a number of notes. With so many of them [Notes] looks for old ones for the first time.
const notesAt = 1024

// Notes are the owners that have handed a lock on ([Record.Move]), or whose lock an operator has released
// ([Record.Release]), for a store in memory. It is for all keys of the store. The zero value has none. It is
// not safe for concurrent use.
type Notes struct {
	all map[about]note
	at  int // with so many notes the old ones are removed
}

type about struct{ key, owner string }

type note struct {
	why   error // ErrPassedOn or ErrRevoked
	until time.Time
}

// Note notes what follows from a request of an owner that was granted; nothing if nothing is to be noted.
func (s *Notes) Note(key, owner string, n Notices, now time.Time) {
	is := note{driver.ErrPassedOn, now.Add(n.Noted)}
	if n.Revoked > 0 {
		is = note{driver.ErrRevoked, now.Add(n.Revoked)}
	}
	if !now.Before(is.until) {
		return
	}
	if s.all == nil {
		s.all, s.at = map[about]note{}, notesAt
	}
	if len(s.all) >= s.at {
		for of, old := range s.all {
			if !now.Before(old.until) {
				delete(s.all, of)
			}
		}
		s.at = max(notesAt, 2*len(s.all))
	}
	s.all[about{key, owner}] = is
}

// Explain returns the error of a request of an owner: where err matches [driver.ErrNotOwner] what is noted about
// the owner, and else err. Moves says that the owner hands the lock on: only then it is told that it has
// done so before.
func (s *Notes) Explain(err error, key, owner string, moves bool, now time.Time) error {
	if !errors.Is(err, driver.ErrNotOwner) {
		return err
	}
	n, ok := s.all[about{key, owner}]
	if !ok || !now.Before(n.until) || !moves && errors.Is(n.why, driver.ErrPassedOn) {
		return err
	}
	return n.why
}

// Len returns how many notes there are, with some that have ended.
func (s *Notes) Len() int { return len(s.all) }
