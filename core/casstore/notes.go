package casstore

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// A note says that an owner has handed a lock on. It is an entry of its own: in the lock's entry, all
// notes of an hour would be written with each change. It is written in the transaction that moves the lock. So
// a request that finds that an owner does not hold its lock, and then looks for the note, finds it.
//
// A note counts for as long as it says from when a store has seen it first, since clocks of processes differ.
// A sweep deletes it then. If no process lives that long, one does a day after that by the clock of the
// process that wrote it.

// noteSpare is how much longer than by its own time a note stays that is judged by clocks of two processes.
const noteSpare = 24 * time.Hour

// note is the name of the note of an owner. Its hash keeps the list of all names under one parent short.
func (l layout) note(key, owner string) string {
	sum := sha256.Sum256([]byte(owner + "\x00" + key))
	text := hex.EncodeToString(sum[:16])
	return l.notes() + text[:2] + "/" + text[2:]
}

func (l layout) notes() string { return l.prefix + "/:passed/" }

// note is a note that was read.
type note struct {
	lasts   time.Duration
	written time.Time // by the clock of the process that wrote it
}

// noteOf reads the value of a note. Another value is a note that has ended long ago.
func noteOf(e Entry) (n note) {
	lasts, written, _ := strings.Cut(e.Value, " ")
	ms, err := strconv.ParseInt(lasts, 10, 64)
	at, failed := strconv.ParseInt(written, 10, 64)
	if err == nil && failed == nil {
		n = note{time.Duration(ms) * time.Millisecond, time.UnixMilli(at)}
	}
	return n
}

// notes is the operation that notes that the former owner has handed the lock on.
func (c *claim) notes(lasts time.Duration) Op {
	value := strconv.FormatInt(lasts.Milliseconds()+1, 10) + " " + strconv.FormatInt(c.now().UnixMilli(), 10)
	return Op{Name: c.names.note(c.ask.Key, c.ask.From), Value: value}
}

// refuses completes the error of a request whose former owner does not hold the lock.
func (c *claim) refuses(why error) (again bool, err error) {
	if !errors.Is(why, driver.ErrNotOwner) {
		return false, why
	}
	defer func(unknown bool) { c.unknown = unknown }(c.unknown) // it takes no lock
	answer, received, again, err := c.send(Txn{Read: []string{c.names.note(c.ask.Key, c.ask.From)}})
	if err != nil {
		return again, err
	}
	if e := answer.Read[0]; e.There() && received.Sub(c.sawNote(e, received)) < noteOf(e).lasts {
		return false, driver.ErrPassedOn
	}
	return false, why
}

// sawNote notes that a note was seen, and returns since when it is known.
func (s *Store) sawNote(e Entry, received time.Time) (since time.Time) {
	s.sawBeat(e.Name, e.Revision, received)
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.seen.beats[e.Name]
	seen.used, seen.lease = received, noteOf(e).lasts
	return seen.at
}

// forgets deletes the notes that have ended, and notes when each of the others was seen first.
func (w *sweeper) forgets(seen map[string]*sighting) error {
	return w.each(w.names.notes(), func(e Entry) {
		n := noteOf(e)
		if seen[e.Name] = w.note(e); w.now().Sub(seen[e.Name].at) >= n.lasts || w.now().Sub(n.written) >= n.lasts+noteSpare {
			_ = w.remove(e) // else the next sweep does
		}
	})
}
