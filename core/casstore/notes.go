package casstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/keystate"
)

// A note says that an owner has handed a lock on, or that an operator has released it. It is an entry of its
// own: in the lock's entry, all notes of an hour would be written with each change. It is written in the
// transaction that moves or releases the lock. So a request that finds that an owner does not hold its lock, and
// then looks for the note, finds it. An owner has one note at most: it has no lock any more.
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

func (l layout) notes() string { return l.prefix + "/:note/" }

// note is a note that was read.
type note struct {
	lasts   time.Duration
	written time.Time // by the clock of the process that wrote it
	why     error     // driver.ErrPassedOn or driver.ErrRevoked
}

// revokedNote ends the value of a note that an operator has released the lock.
const revokedNote = " revoked"

// noteOf reads the value of a note. Another value is a note that has ended long ago.
func noteOf(e Entry) (n note) {
	text, revoked := strings.CutSuffix(e.Value, revokedNote)
	lasts, written, _ := strings.Cut(text, " ")
	ms, err := strconv.ParseInt(lasts, 10, 64)
	at, failed := strconv.ParseInt(written, 10, 64)
	if err != nil || failed != nil {
		return n
	}
	n = note{time.Duration(ms) * time.Millisecond, time.UnixMilli(at), driver.ErrPassedOn}
	if revoked {
		n.why = driver.ErrRevoked
	}
	return n
}

// noting are the operations that note what follows for the owner of a request.
func (s *Store) noting(key, owner string, n keystate.Notices) []Op {
	lasts, why := n.Noted, ""
	if n.Revoked > 0 {
		lasts, why = n.Revoked, revokedNote
	}
	if lasts <= 0 {
		return nil
	}
	value := strconv.FormatInt(lasts.Milliseconds()+1, 10) + " " + strconv.FormatInt(s.now().UnixMilli(), 10) + why
	return []Op{{Name: s.names.note(key, owner), Value: value}}
}

// refuses completes the error of a request whose former owner does not hold the lock.
func (c *claim) refuses(why error) (again bool, err error) {
	if !errors.Is(why, driver.ErrNotOwner) {
		return false, why
	}
	answer, received, again, err := c.send(Txn{Read: []string{c.names.note(c.ask.Key, c.ask.From)}})
	if err != nil {
		return again, err
	}
	if noted := c.noted(answer.Read[0], received); noted != nil {
		why = noted
	}
	return false, why
}

// noted returns the content of a note that was read; nil if there is no note, or it has ended.
func (s *Store) noted(e Entry, received time.Time) error {
	if n := noteOf(e); e.There() && received.Sub(s.sawNote(e, received)) < n.lasts {
		return n.why
	}
	return nil
}

// denial is the answer to a request of an owner that does not hold its lock.
type denial struct {
	key, owner string
	why        error
}

// explain completes answers: an operator may have released the locks. It makes one try, within the time of a
// lost answer: the owner is to know soon that it has lost the lock. If it fails, the answers stay.
func (s *Store) explain(ctx context.Context, all []denial) {
	if len(all) == 0 {
		return
	}
	var txn Txn
	for _, d := range all {
		txn.Read = append(txn.Read, s.names.note(d.key, d.owner))
	}
	t := tries{store: s, deadline: time.Now().Add(s.wait()), base: ctx}
	answer, received, _, err := t.send(txn)
	for i := range all {
		if err == nil && errors.Is(s.noted(answer.Read[i], received), driver.ErrRevoked) {
			all[i].why = driver.ErrRevoked
		}
	}
}

// explained is [Store.explain] for one answer, which may be another one.
func (s *Store) explained(ctx context.Context, key, owner string, why error) error {
	if !errors.Is(why, driver.ErrNotOwner) {
		return why
	}
	one := []denial{{key, owner, why}}
	s.explain(ctx, one)
	return one[0].why
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
