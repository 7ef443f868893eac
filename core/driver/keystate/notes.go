package keystate

import "time"

// notesAt is a number of notes. With so many of them [Notes] looks for old ones for the first time.
const notesAt = 1024

// Notes are the owners that have handed a lock on ([Record.Move]), for a store in memory. It is for all keys
// of the store. The zero value has none. It is not safe for concurrent use.
type Notes struct {
	until map[note]time.Time
	at    int // with so many notes the old ones are removed
}

type note struct{ key, owner string }

// Note notes what follows from a request with a From that was granted; nothing if nothing is to be noted.
func (s *Notes) Note(key, from string, n Notices, now time.Time) {
	if n.Noted <= 0 {
		return
	}
	if s.until == nil {
		s.until, s.at = map[note]time.Time{}, notesAt
	}
	if len(s.until) >= s.at {
		for old, until := range s.until {
			if !now.Before(until) {
				delete(s.until, old)
			}
		}
		s.at = max(notesAt, 2*len(s.until))
	}
	s.until[note{key, from}] = now.Add(n.Noted)
}

// Has reports whether an owner has handed the lock of a key on.
func (s *Notes) Has(key, owner string, now time.Time) bool {
	until, ok := s.until[note{key, owner}]
	return ok && now.Before(until)
}

// Len returns how many notes there are, with some that have ended.
func (s *Notes) Len() int { return len(s.until) }
