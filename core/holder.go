package core

import (
	"context"
	"time"

	"github.com/interlock-go/interlock/core/internal/lock"
	"github.com/interlock-go/interlock/core/observe"
)

// reasons are the reasons of a loss by those of package lock.
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

// holder is the Lease as the [lock.Holder] of the locks that it took.
type holder Lease

// Lost implements [lock.Holder].
func (h *holder) Lost(w *lock.Waiter, reason lock.Reason, cause, err error) {
	l := (*Lease)(h)
	// Before the handler hears of it: it may answer because of that.
	loss := l.loss(w, reasons[reason], err)
	l.end(cause)
	if reason == 0 {
		return
	}
	if o := l.observation(); o != nil && o.Lost != nil {
		l.config.locker.told("Observation.Lost", func() { o.Lost(loss) })
	}
	l.tellLost(loss)
}

// Renewed implements [lock.Holder].
func (h *holder) Renewed(w *lock.Waiter, err error, took time.Duration) {
	if o := (*Lease)(h).observation(); o != nil && o.Renewed != nil {
		h.config.locker.told("Observation.Renewed", func() { o.Renewed(observe.Renewed{Key: w.Key(), Err: err, Took: took}) })
	}
}

// Over implements [lock.Holder].
func (h *holder) Over(cause error) {
	l := (*Lease)(h)
	if cause != nil {
		l.end(cause)
	}
	l.over()
}

// took reports whether the lease took the lock itself, and did not re-enter it.
func (l *Lease) took(w *lock.Waiter) bool { return w.Holder == lock.Holder((*holder)(l)) }

// releaseOne gives up one hold. It returns the loss if the lease was lost and that
// was not told before; then the observer gets it with the release.
func (l *Lease) releaseOne(ctx context.Context, w *lock.Waiter) (handed bool, lost *Loss, err error) {
	r := l.config.locker.locks.Release(ctx, w)
	if r.Lost != 0 {
		by := (*Lease)(w.Holder.(*holder)) //nolint:forcetypeassert // there is no other
		loss := by.loss(w, reasons[r.Lost], nil)
		lost = &loss
		by.tellLost(loss)
	}
	return r.HandedOff, lost, r.Err
}

// loss describes the loss of a lock that the lease took.
func (l *Lease) loss(w *lock.Waiter, reason observe.LossReason, err error) Loss {
	loss := Loss{
		Key: Hashed(w.Key()), Rule: l.config.name, Owner: w.Owner(), Token: w.Token(),
		Held: l.config.locker.locks.Clock.Now().Sub(w.Since()), Reason: reason, Err: err,
	}
	if v := guardedOf(l.parent); v != nil {
		loss.Route, loss.Principal, loss.Answered = v.route, v.principal, "no"
		if v.answered.Load() {
			loss.Answered = "yes"
		}
	}
	return loss
}

// tellLost calls OnLost on a goroutine of its own.
func (l *Lease) tellLost(loss Loss) {
	if f := l.config.onLost; f != nil {
		go l.config.locker.told("OnLost", func() { f(loss) })
	}
}
