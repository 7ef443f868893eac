package core

import (
	"context"
	"time"

	"github.com/interlock-go/interlock/core/internal/lock"
)

// hold is one lock of a lease: the caller's place in the queue of the key, and then
// its hold. It implements [lock.Holder].
type hold struct {
	lock.Waiter
	locker *Locker
	config *config
	lease  *Lease // that took it
}

// reasons are the reasons of a loss by those of package lock.
var reasons = [...]LossReason{
	lock.Expired:     LossExpired,
	lock.Deleted:     LossDeleted,
	lock.TakenOver:   LossTakenOver,
	lock.NotOwner:    LossNotOwner,
	lock.Unavailable: LossUnavailable,
	lock.MaxHold:     LossMaxHold,
	lock.Closed:      LossClosed,
}

// Lost implements [lock.Holder].
func (h *hold) Lost(reason lock.Reason, cause, err error) {
	// Before the handler hears of it: it may answer because of that.
	loss := h.loss(reasons[reason], err)
	h.lease.end(cause)
	if reason == 0 {
		return
	}
	if o := h.lease.obs; o != nil && o.Lost != nil {
		h.locker.told("Observation.Lost", func() { o.Lost(loss) })
	}
	h.tellLost(loss)
}

// Renewed implements [lock.Holder].
func (h *hold) Renewed(err error, took time.Duration) {
	if o := h.lease.obs; o != nil && o.Renewed != nil {
		h.locker.told("Observation.Renewed", func() { o.Renewed(Renewed{Key: h.Key(), Err: err, Took: took}) })
	}
}

// Over implements [lock.Holder].
func (h *hold) Over(cause error) {
	if cause != nil {
		h.lease.end(cause)
	}
	h.lease.over()
}

// release gives up one entry. It returns the loss if the lease was lost and that was
// not told before; then the observer gets it with the release.
func (h *hold) release(ctx context.Context) (handed bool, lost *Loss, err error) {
	r := h.locker.locks.Release(ctx, &h.Waiter)
	if r.Lost != 0 {
		loss := h.loss(reasons[r.Lost], nil)
		lost = &loss
		h.tellLost(loss)
	}
	return r.HandedOff, lost, r.Err
}

// loss describes the loss of the lock.
func (h *hold) loss(reason LossReason, err error) Loss {
	loss := Loss{
		Key: Hashed(h.Key()), Rule: h.config.name, Owner: h.Owner(), Token: h.Token(),
		Held: h.locker.locks.Clock.Now().Sub(h.Since()), Reason: reason, Err: err,
	}
	if v := visitOf(h.lease.parent); v != nil {
		loss.Route, loss.Principal, loss.Answered = v.route, v.principal, AnsweredNo
		if v.answered.Load() {
			loss.Answered = AnsweredYes
		}
	}
	return loss
}

// tellLost calls OnLost on a goroutine of its own.
func (h *hold) tellLost(loss Loss) {
	if f := h.config.onLost; f != nil {
		go h.locker.told("OnLost", func() { f(loss) })
	}
}
