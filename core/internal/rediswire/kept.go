package rediswire

import (
	"context"
	_ "embed"
	"strconv"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/inflight"
)

//go:embed lua/unkeep.lua
var unkeepSource string

var unkeepScript = NewScript(complete(unkeepSource, ""))

// mostKept is for how many lockers a lock is kept at most (lua/reserve.lua).
const mostKept = 4

// keptFor returns for how many of the first lockers of a list a lock is kept that was reserved
// for a time. A locker that has entered the list since is not among them.
func keptFor(q string, reserved time.Duration) (n int) {
	for w := range driver.Waiters(q).All() {
		if n == mostKept || reserved <= 0 || !w.Patient() {
			break
		}
		reserved -= w.Patience()
		n++
	}
	return n
}

// Unkeep frees a lock that is kept for waiting lockers, and calls these. token is the last
// token of the lock when the caller found it kept ([driver.View.Token]). Unkeep returns false if the lock was not kept
// any more, or had a holder in between.
func (s *Store) Unkeep(ctx context.Context, key string, token int64) (freed bool, err error) {
	r := new(struct {
		Request
		names [2]string // lock, fence
		seen  string
		room  [callArgs + 4]any
	})
	r.names[0], r.names[1] = s.names.with(key, fenceSuffix)
	if token != 0 { // else there was no fence
		r.seen = strconv.FormatInt(token, 10)
	}
	r.Make(s, unkeepScript, r.names[0], r.room[:]).Keys(&r.names[0], &r.names[1]).Args(&r.seen)
	if r.Start(); !r.Wait(ctx, time.Time{}) {
		return false, inflight.Pending(ctx)
	}
	if r.Err != nil {
		return false, Wrap(r.Err)
	}
	n, err := code(r.Val, 2)
	switch {
	case err != nil:
		return false, Wrap(err)
	case n == 0 && r.Ambiguous:
		return false, errRepeated
	case n == 2:
		s.SayMute()
	}
	return n > 0, nil
}
