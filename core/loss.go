package core

import (
	"time"

	"github.com/interlock-go/interlock/core/internal/lock"
	"github.com/interlock-go/interlock/core/observe"
)

// Loss describes a lost lease: the lock, the holder, the time and the reason. It
// can be logged as it is. Printed, logged by log/slog or marshaled, it shows no key
// and no principal, only their hashes. Its fields and methods are described at
// [observe.Loss], the reasons at [observe.LossReason].
type Loss = observe.Loss

// Hashed is a text that identifies a user: a key, a principal. Printed, logged by
// log/slog or marshaled, it shows its hash. string(h) is the text itself.
// core.Hashed("account/42").Hash() is the hash of the lock account/42 in logs and
// traces. Its methods are described at [observe.Hashed].
type Hashed = observe.Hashed

// reasons are the reasons of a loss by the reasons of package lock.
var reasons = [...]observe.LossReason{
	lock.Expired:     observe.LossExpired,
	lock.Deleted:     observe.LossDeleted,
	lock.TakenOver:   observe.LossTakenOver,
	lock.Revoked:     observe.LossRevoked,
	lock.NotOwner:    observe.LossNotOwner,
	lock.Unavailable: observe.LossUnavailable,
	lock.MaxHold:     observe.LossMaxHold,
	lock.Closed:      observe.LossClosed,
}

// loss describes the loss of a lock that the lease took.
func (lease *Lease) loss(w *lock.Waiter, reason observe.LossReason, err error) Loss {
	loss := Loss{
		Key: Hashed(w.Key()), Rule: lease.config.name, Owner: w.Owner(), Token: w.Token(),
		Held: lease.config.locker.locks.Clock.Now().Sub(w.Since()), Reason: reason, Err: err,
	}
	if m := lease.more.Load(); m != nil && m.request != nil {
		v := m.request
		loss.Route, loss.Principal, loss.Answered = v.route, v.principal, "no"
		if v.answered.Load() {
			loss.Answered = "yes"
		}
	}
	return loss
}

// tellLost has OnLost called. Without it and without an observer, only the log says that another
// holder may have had the lock.
func (lease *Lease) tellLost(loss Loss) {
	c := &lease.config.locker.calls
	switch f := lease.config.onLost; {
	case f != nil:
		c.lost.Put(func() { c.told("OnLost", func() { f(loss) }) })
	case lease.observation() == nil:
		c.log.Warn("interlock: lease lost", "loss", loss)
	}
}

// Lost implements [lock.Holder].
func (h *holder) Lost(w *lock.Waiter, reason lock.Reason, cause, err error) {
	l := (*Lease)(h)
	// Before the handler knows: it may answer because of that.
	loss := l.loss(w, reasons[reason], err)
	l.end(cause)
	if reason == 0 {
		return
	}
	if o := l.observation(); o != nil && o.Lost != nil {
		c := &l.config.locker.calls
		c.observed.Put(func() { c.told("Observation.Lost", func() { o.Lost(loss) }) })
	}
	l.tellLost(loss)
}

// Renewed implements [lock.Holder].
func (h *holder) Renewed(w *lock.Waiter, err error, took time.Duration) {
	if o := (*Lease)(h).observation(); o != nil && o.Renewed != nil {
		c, r := &h.config.locker.calls, observe.Renewed{Key: w.Key(), Err: err, Took: took}
		c.observed.Put(func() { c.told("Observation.Renewed", func() { o.Renewed(r) }) })
	}
}

// lostAtRelease calls OnLost, and returns the loss for the observer.
func (lease *Lease) lostAtRelease(w *lock.Waiter, reason observe.LossReason) *Loss {
	if lease.config.onLost == nil && lease.config.locker.base.observer == nil {
		return nil
	}
	loss := lease.loss(w, reason, nil)
	lease.tellLost(loss)
	return &loss
}
