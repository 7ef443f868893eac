package core

import (
	"context"
	"errors"

	"github.com/interlock-go/interlock/core/reason"
)

// Section is what a handler runs in after [Guard.Enter]: under the lock of the
// guard, or without a lock where there is no guard or the guard lets the request
// through. [Guard.Enter] and [Prepared.Enter] make one; the zero value has no
// context.
type Section struct {
	guard   *Guard
	lease   *Lease // nil: without a lock
	ctx     context.Context
	request *guarded // nil: no option needs it
}

// Context returns the context of the handler. It is the context of the lease.
// Without a lock it derives from the context given to [Guard.Enter].
func (s Section) Context() context.Context { return s.ctx }

// BeginAnswer is the function [adapter.BeginAnswer] for this section.
func (s Section) BeginAnswer(success bool) bool { return s.request == nil || s.request.Begin(success) }

// answered notes that the client has its answer, from the handler or from
// middleware.
func (s Section) answered() {
	if s.request != nil {
		s.request.answered.Store(true)
	}
}

// Leave releases the lock. It uses only the values of ctx. Errors go to the
// [observe.Observer]. Leave may be called more than once; later calls do nothing.
func (s Section) Leave(ctx context.Context) {
	if s.lease == nil {
		return
	}
	if s.request != nil && s.request.admitted != nil {
		defer s.request.admitted.leave() // not before the lock has gone
	}
	_ = s.lease.Release(ctx)
}

// Lost returns nil while the lock can be trusted. After a loss it returns the
// [Refusal] for a client that was not answered before. Call it before
// [Section.Leave].
func (s Section) Lost() *Refusal {
	if s.lease == nil {
		return nil
	}
	// Read before the release, which would make it ErrReleased; that is also
	// what a handler leaves that released its lease itself, early, by intent.
	lost := s.lease.Err()
	if v := s.request; v != nil && v.check && !v.answered.Load() {
		lost = v.confirm() // an answer may follow: of net/http's for one
	}
	if lost == nil || errors.Is(lost, ErrReleased) {
		return nil
	}
	refusal := &Refusal{Reason: reason.Lost, Ran: true, Rule: s.guard.config.name, Err: lost, keys: s.lease.Keys()}
	if errors.Is(lost, ErrMaxHold) {
		refusal.Reason = reason.MaxHold
	}
	return refusal
}
