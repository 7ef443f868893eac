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

// noteKey begins the key of a note that an owner has handed a lock on. No request has a zero byte in a
// key of that form.
const noteKey = "\x00interlock passed\x00"

// note is the row of a note. It has an end of its own: in the record of its lock all notes of an hour
// would be read and written with each request.
type note struct {
	key  string
	of   int64 // the index of the change that it goes with, from 1
	ends time.Time
}

// noteOf is the key of the note that an owner has handed the lock of a key on.
func noteOf(key, owner string) string {
	sum := sha256.Sum256([]byte(owner + "\x00" + key))
	return noteKey + string(sum[:])
}

// note has the change make the note of a request that hands a lock on. A request that brings the same
// owner in the same batch is refused by it.
func (c *change) note(r *request, v *ruling, n keystate.Notices, now time.Time) {
	switch key := noteOf(c.key, r.from); {
	case r.from == "":
	case n.Noted > 0:
		c.notes = append(c.notes, note{key: key, ends: now.Add(n.Noted)})
	case errors.Is(v.err, driver.ErrNotOwner) && slices.ContainsFunc(c.notes, func(n note) bool { return n.key == key }):
		v.err = driver.ErrPassedOn
	}
}

// lookForNotes finds out which requests were refused because their former owners have handed the lock
// on. A note is written together with the row that refuses the request, so it is there if that was read.
func (s *Store) lookForNotes(ctx context.Context, q querier, batch []*request) error {
	var refused []*request
	for _, r := range batch {
		if v := r.answer.ruling; r.from != "" && v != nil && errors.Is(v.err, driver.ErrNotOwner) && !errors.Is(v.err, driver.ErrPassedOn) {
			refused = append(refused, r)
		}
	}
	if len(refused) == 0 {
		return nil
	}
	rows, err := q.QueryContext(ctx, s.text.Load().noted, bytesArray(refused, func(r *request) string { return noteOf(r.key, r.from) }))
	return each(rows, err, func() error {
		var i int
		if err := rows.Scan(&i); err != nil || i < 1 || i > len(refused) {
			return cmp.Or(err, errOther)
		}
		refused[i-1].answer.ruling.err = driver.ErrPassedOn
		return nil
	})
}
