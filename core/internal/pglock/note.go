package pglock

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/keystate"
)

// noteKey begins the key of a note. No request has a zero byte in a key of that form.
const noteKey = "\x00interlock note\x00"

// note is the row of a note that an owner has handed a lock on, or that an operator has released it. It has
// an end of its own: in the record of its lock all notes of an hour would be read and written with each request.
// An owner has one note at most: it has no lock any more.
type note struct {
	key  string
	why  int64 // passedOn or revoked
	of   int64 // the index of the change that it goes with, from 1
	ends time.Time
}

// What a note says, as the token of its row.
const (
	passedOn = iota
	revoked
)

// noteOf is the key of the note about the owner of the lock of a key.
func noteOf(key, owner string) string {
	sum := sha256.Sum256([]byte(owner + "\x00" + key))
	return noteKey + string(sum[:])
}

// loser is the owner that a request is refused for, where it does not hold the lock.
func (r *request) loser() string { return cmp.Or(r.from, r.owner) }

// note has the change make the notes of a request. A request that brings the same owner in the same batch is
// refused by it.
func (c *change) note(r *request, n keystate.Notices, now time.Time) {
	switch {
	case n.Noted > 0:
		c.notes = append(c.notes, note{key: noteOf(c.key, r.loser()), why: passedOn, ends: now.Add(n.Noted)})
	case n.Revoked > 0:
		c.notes = append(c.notes, note{key: noteOf(c.key, r.loser()), why: revoked, ends: now.Add(n.Revoked)})
	case r.unexplained():
		key := noteOf(c.key, r.loser())
		if i := slices.IndexFunc(c.notes, func(n note) bool { return n.key == key }); i >= 0 {
			r.explain(c.notes[i].why)
		}
	}
}

// unexplained reports whether the request is refused because its owner does not hold the lock, and it is not
// known whether there is a note about the owner.
func (r *request) unexplained() bool {
	if r.answer == nil {
		return false
	}
	err := r.answer.err
	return errors.Is(err, driver.ErrNotOwner) && !errors.Is(err, driver.ErrPassedOn) && !errors.Is(err, driver.ErrRevoked)
}

// explain completes the answer by what a note says. That a lock was handed on is told only to who hands it on.
func (r *request) explain(why int64) {
	switch {
	case why == revoked:
		r.answer.err = driver.ErrRevoked
	case r.from != "":
		r.answer.err = driver.ErrPassedOn
	}
}

// lookForNotes finds out which requests were refused because their owners have handed the lock on, or an
// operator has released it. A note is written together with the row that refuses the request, so it is there if
// that was read.
func (s *Store) lookForNotes(ctx context.Context, q querier, batch []*request) error {
	var refused []*request
	for _, r := range batch {
		if r.unexplained() {
			refused = append(refused, r)
		}
	}
	if len(refused) == 0 {
		return nil
	}
	rows, err := q.QueryContext(ctx, s.text.Load().noted, bytesArray(refused, func(r *request) string { return noteOf(r.key, r.loser()) }))
	return each(rows, err, func() error {
		var i int
		var why int64
		if err := rows.Scan(&i, &why); err != nil || i < 1 || i > len(refused) {
			return cmp.Or(err, errOther)
		}
		refused[i-1].explain(why)
		return nil
	})
}
