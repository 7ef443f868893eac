package lock

import (
	"fmt"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
)

// Check returns why the lease of w cannot be trusted at this moment, or nil. It
// takes what [clock.Clock.Read] returned.
func (t *Table) Check(w *Waiter, now clock.Instant, ahead time.Duration) (err error) {
	w.lock.shard.event(w.lock, func(fx *effects) { err = w.check(now, ahead, fx) })
	return err
}

// check returns why a hold cannot be trusted at this moment, or nil.
func (w *Waiter) check(now clock.Instant, ahead time.Duration, fx *effects) error {
	switch {
	case w.err != nil:
		return w.lostError()
	case w.state == gone:
		return nil // released
	case now >= w.own.lease.deadline():
		return fmt.Errorf("%w: %q", ErrLost, w.lock.key)
	case w.own.lease.suspended(ahead):
		fx.renewNow(w.own, now)
		return fmt.Errorf("%w: %q: %w", ErrLost, w.lock.key, errSuspended)
	}
	return nil
}

// Reenter adds a hold to the hold of w. It reports whether there is a hold to add one
// to; an error says that there was one, and that it was lost.
func (t *Table) Reenter(w *Waiter) (ok bool, err error) {
	now := t.Clock.Now()
	w.lock.shard.event(w.lock, func(*effects) { ok, err = w.reenter(now) })
	return ok, err
}

// reenter is the event that a hold is added. It returns what [Table.Reenter] returns.
func (w *Waiter) reenter(now clock.Instant) (bool, error) {
	switch {
	case w.err != nil && w.holds > 0:
		return false, w.lostError()
	case w.state != granted:
		return false, nil
	case now >= w.own.lease.deadline():
		// The watchdog is about to say so.
		return false, fmt.Errorf("%w: %q", ErrLost, w.lock.key)
	}
	w.holds++
	return true, nil
}

// Live reports whether w holds the lock, as far as is known.
func (t *Table) Live(w *Waiter) bool {
	sh := w.lock.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return w.state == granted && w.err == nil
}

// Owner returns the owner of w's hold, "" if w holds nothing.
func (t *Table) Owner(w *Waiter) string {
	sh := w.lock.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if w.state != granted || w.err != nil {
		return ""
	}
	return w.own.owner()
}

// Owners are the owners that keep a caller from a lock.
type Owners struct {
	List string // with commas between them
	Full bool   // all permits are taken: the caller waits until one of them is given back
}

// HeldBy returns the owners that are known to keep a caller of a kind from the lock of a key:
// the owners of this process, and the owners named in the refusal of its last try.
func (t *Table) HeldBy(key string, kind driver.Kind) Owners {
	sh := t.shardOf(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	l := sh.locks[key]
	switch {
	case l == nil:
		return Owners{}
	case l.own != nil:
		return Owners{List: l.own.owner()}
	case kind.Place(): // it may have a place as well, unless all permits are taken
		if l.acq == nil || !l.acq.refusal.full {
			return Owners{}
		}
		return Owners{l.acq.refusal.holder, true}
	}
	var owners []string
	for _, own := range l.places.held() {
		owners = append(owners, own.owner())
	}
	if l.acq != nil && !l.acq.refusal.full {
		owners = append(owners, l.acq.refusal.holder)
	}
	return Owners{List: strings.Join(owners, ",")}
}

// Deadline returns until when the lease of w is good without another renewal.
func (t *Table) Deadline(w *Waiter) clock.Instant {
	sh := w.lock.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return w.own.lease.deadline()
}
