package core

import (
	"errors"
	"fmt"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/lock"
)

// Newest lets the newest caller of a key take the place of the callers that came before it:
// the next message of a chat, the last of several saves. The newest caller goes before all
// that wait, in all processes. A caller with the option that came before it and still waits gets
// [ErrSuperseded] at once. The context of a holder with the option ends, with cause ErrSuperseded.
// The holder has to stop then, because the newest caller waits for it: there are never two
// holders. The lease of the holder stays valid and is renewed until it is released, so that the
// holder can save its work; [Lease.Err] and [Lease.Check] return nil. Only callers with the option
// are superseded; a ticket ([Lease.HandOver]) is not, and [Locker.TakeOver] does not take the option.
//
// Callers of one process need no store for that. Between processes a message informs the caller
// within milliseconds. If the message is lost, a caller that waits finds out within a second, and
// a holder with the next renewal, at a third of the lease. A caller that leaves before the store has
// answered its first request may still take the place of others. Newest includes [Attentive].
//
// Give the option to all callers of a key. Callers without it wait for as long as newest callers
// come. The hold of a newest caller is not handed over in the process, so each costs the round trips
// of an acquire and a release.
//
// The store has to know the order of callers ([driver.Turns]): the stores of packages redisstore,
// pgstore and memstore do. On another store the constructor or the call returns [ErrConfig], as it does with
// [Shared], [Permits], [ShareReads] and [Wait](0). For [Locker.Lock], its relatives, and
// [NewGuard]; not for [New] and [Lead]. In [Locker.TryLock] it has no effect. Default: callers wait for their turns.
func Newest() Option {
	return option(func(c *config) {
		c.setLine(driver.Newest)
		c.terms.Attentive = true
	})
}

// OneWaiter lets one caller wait for a key, in all processes. While it waits, a further
// caller with the option gets [ErrQueueFull] at once, and does not wait in vain. In a
// process the caller counts all callers that wait, as [MaxWaiters](1) does. Of the other processes it counts callers with the option.
// If the process of a waiter died, its place is free after 1.5 s. The same holds for a waiter that
// left while the store could not be reached.
//
// The stores and the other options are as for [Newest]. The two cannot be combined. Default: any
// number waits.
func OneWaiter() Option {
	return option(func(c *config) {
		c.setLine(driver.OneWaiter)
		c.terms.MaxWaiters = 1
	})
}

// setLine says where a caller stands among the waiting callers.
func (c *config) setLine(line driver.Line) {
	if c.terms.Line != driver.InTurn && c.terms.Line != line {
		c.fail("Newest and OneWaiter together: a newest caller never waits behind another")
		return
	}
	c.terms.Line = line
}

// checkLine returns an error for a line that no caller can join.
func (c *config) checkLine() error {
	name := lines[c.terms.Line]
	switch {
	case c.terms.Line == driver.InTurn:
		return nil
	case c.terms.Kind.Place() || c.guard.shareReads:
		return fmt.Errorf("%w: %s with Shared, Permits or ShareReads: it is for a lock that one caller holds alone", ErrConfig, name)
	case c.terms.Wait == 0:
		return fmt.Errorf("%w: %s with Wait(0): it is for callers that wait for the holder", ErrConfig, name)
	case c.locker != nil:
		if _, ok := c.locker.store.(driver.Turns); !ok {
			return fmt.Errorf("%w: %s: the store %T does not order the callers of several processes", ErrConfig, name, c.locker.store)
		}
		return c.locker.limits(driver.Hold{Line: c.terms.Line})
	}
	return nil
}

// lines are the names of the options.
var lines = [...]string{driver.InTurn: "", driver.Newest: "Newest", driver.OneWaiter: "OneWaiter"}

// Superseded implements [lock.Holder].
func (h *holder) Superseded(*lock.Waiter) { (*Lease)(h).end(ErrSuperseded) }

// superseded reports whether the context of the lease has ended because a newer caller waits.
func (lease *Lease) superseded() bool {
	lease.mu.Lock()
	defer lease.mu.Unlock()
	return lease.ended == endedBySuperseded
}

// stopped returns what a function returned under a lease. Unless it is nil, it says that a
// newer caller has come, if that ended the context of the function.
func (lease *Lease) stopped(err error) error {
	if err != nil && lease.superseded() && !errors.Is(err, ErrSuperseded) {
		err = errors.Join(err, ErrSuperseded)
	}
	return err
}
