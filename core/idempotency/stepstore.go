package idempotency

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/internal/steplog"
)

// store stores the outcome of a step. written says that an earlier request had the entry, and
// was not confirmed.
func (r *stepRun) store(e *steplog.Entry, written bool) (err error) {
	unit := r.takeUnit()
	switch {
	case unit != nil && r.ctx.Err() != nil:
		r.ended(unit.Rollback(r.ctx))
		return fmt.Errorf("%w: %w", ErrRolledBack, context.Cause(r.ctx))
	case unit != nil:
		err = r.commit(unit, e)
	case written:
		err = r.write(nil)
	default:
		err = r.write(e)
	}
	r.locked(func(s *steps) {
		switch {
		case err == nil:
			r.state.entry, r.state.unstored, r.state.asked, r.state.unsure = e, nil, true, false
			if s.unsettled == r.name {
				s.unsettled = ""
			}
			if r.attempt.ended {
				err = errReturned
			}
		case unit == nil:
			r.state.unstored = e
		}
	})
	return err
}

// write stores the entries of the attempt, and one more unless it is nil.
func (r *stepRun) write(e *steplog.Entry) error {
	a := r.attempt
	err := r.send(e, false, storeWait, a.engine.store.Step)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, driver.ErrNotOwner):
		a.engine.watchdog.lose(a, core.ErrLost)
		return errTakenOver
	}
	return unavailable(err)
}

// commit commits the transaction of a step with its outcome.
func (r *stepRun) commit(unit record.StepUnit, e *steplog.Entry) error {
	a := r.attempt
	err := r.send(e, true, unitWait, unit.CommitStep)
	switch {
	case err == nil, errors.Is(err, ErrRolledBack):
		return err
	case errors.Is(err, driver.ErrNotOwner):
		a.engine.watchdog.lose(a, core.ErrLost)
		return errTakenOver
	case errors.Is(err, record.ErrEnded):
		r.ended(err)
		return err
	}
	err = unavailable(err)
	r.locked(func(s *steps) { s.broken = err }) // later steps could not tell if this one is done
	return err
}

// ended notes that the handler has ended the transaction of a step by itself.
func (r *stepRun) ended(err error) {
	if errors.Is(err, record.ErrEnded) {
		r.locked(func(s *steps) { s.broken, r.attempt.stepEnded = err, true })
	}
}

// send sends one request. With a transaction the entry counts only if the request succeeds; else
// the store may have it, and the next request has it again.
func (r *stepRun) send(e *steplog.Entry, tx bool, within time.Duration, send func(context.Context, record.StepRequest) error) error {
	a := r.attempt
	s := a.steps // set before the step began
	s.lane <- struct{}{}
	defer func() { <-s.lane }()
	c := a.engine.config
	req := record.StepRequest{ID: a.id, Token: a.token, Lease: c.lease, Retention: c.retention, Deadline: time.Now().Add(within)}
	var err error
	note := func() { s.log, s.last, s.open = req.Log, req.Last, req.Open }
	r.locked(func(*steps) {
		if err = s.broken; err != nil {
			return
		}
		req.Log, req.Last, req.Open = slices.Clip(s.log), s.last, s.open
		if e != nil {
			req.Log = steplog.Append(req.Log, *e)
			switch {
			case e.Kind == steplog.Opened:
				req.Open = e.Name
			case req.Open == e.Name:
				req.Open = ""
			}
			if e.Kind.Outcome() {
				req.Last = e.Name
			}
		}
		if !tx {
			note()
		}
	})
	if err != nil {
		return err
	}
	// An effect that has happened is noted also when the context has ended; the store compares the token.
	err = send(context.WithoutCancel(r.ctx), req)
	if tx && err == nil {
		r.locked(func(*steps) { note() })
	}
	return err
}
