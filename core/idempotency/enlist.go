package idempotency

import (
	"context"
	"errors"
	"fmt"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency/record"
)

// enlistment is the transaction of an attempt, or of a step; guarded by the mutex of the
// attempt.
type enlistment struct {
	unit  record.Unit   // nil: there is none
	begun chan struct{} // closed when the transaction has begun, or has failed to; nil: no caller begins it
}

// Enlist implements [record.Enlist]. One caller begins the transaction, and the others wait for
// it. In a step it is the transaction of the step.
func (a *attempt) Enlist(
	ctx context.Context, begin func(context.Context, record.Claim) (record.Unit, error),
) (record.Unit, error) {
	if a.engine == nil {
		return nil, record.ErrNoRecord
	}
	t, may := &a.enlistment, a.enlists
	if r := stepOf(ctx, a); r != nil {
		t, may = &r.own, r.enlists
	}
	for {
		unit, begun, err := a.enlisted(t, may)
		switch {
		case unit != nil || err != nil:
			return unit, err
		case begun == nil:
			return a.begin(ctx, t, may, begin)
		}
		select {
		case <-begun:
		case <-ctx.Done():
			return nil, fmt.Errorf("interlock: beginning a transaction: %w", context.Cause(ctx))
		}
	}
}

// enlisted returns the transaction, or a channel that is closed when another caller has begun it. If
// it returns neither, the caller begins the transaction.
func (a *attempt) enlisted(t *enlistment, may func() error) (unit record.Unit, begun <-chan struct{}, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch err := may(); {
	case err != nil:
		return nil, nil, err
	case t.unit == nil && t.begun == nil:
		t.begun = make(chan struct{})
		return nil, nil, nil
	}
	return t.unit, t.begun, nil
}

// begin begins the transaction. The handler may return meanwhile: its answer does not wait, and
// the transaction, which has no statement of the handler, is rolled back.
func (a *attempt) begin(
	ctx context.Context, t *enlistment, may func() error, begin func(context.Context, record.Claim) (record.Unit, error),
) (record.Unit, error) {
	defer func() { // also if begin panics
		a.mu.Lock()
		defer a.mu.Unlock()
		close(t.begun)
		t.begun = nil
	}()
	unit, err := begin(ctx, record.Claim{Store: a.engine.store, ID: a.id, Token: a.token, Lease: a.engine.config.lease})
	if err != nil {
		return nil, err
	}
	if err := a.adopt(t, may, unit); err != nil {
		_ = unit.Rollback(ctx) // what fails, the database rolls back
		return nil, err
	}
	return unit, nil
}

// adopt makes a transaction that has begun the transaction of the attempt, or of its step.
func (a *attempt) adopt(t *enlistment, may func() error, unit record.Unit) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	err := may()
	if _, ok := unit.(record.StepUnit); err == nil && t != &a.enlistment && !ok {
		err = fmt.Errorf("%w: the transactions of this package cannot end with a step", core.ErrConfig)
	}
	if err == nil {
		t.unit = unit
	}
	return err
}

// enlists returns why the attempt cannot have a transaction, or nil. The caller has a.mu.
func (a *attempt) enlists() error {
	if err := a.live(); err != nil {
		return fmt.Errorf("interlock: beginning a transaction: %w", err)
	}
	if a.overflow != fits {
		return fmt.Errorf("interlock: beginning a transaction: the response has been sent already: %w", errOversized)
	}
	return nil
}

var errTwoUnits = fmt.Errorf("%w: %w", core.ErrConfig, errors.New("the request has a transaction already, and a step cannot have another: begin it after the steps"))

// enlists returns why a step cannot have a transaction, or nil. The caller has the mutex of the
// attempt. A transaction of the request that is open could wait for the rows of the step, and the
// step for its rows.
func (r *stepRun) enlists() error {
	a := r.attempt
	switch err := a.live(); {
	case err != nil:
		return fmt.Errorf("interlock: beginning the transaction of a step: %w", err)
	case !r.state.underWay:
		return fmt.Errorf("interlock: beginning the transaction of a step: %w", errStepOver)
	case a.unit != nil || a.begun != nil:
		return errTwoUnits
	}
	return nil
}

// takeUnit returns the transaction of a step, which the caller ends; nil if there is none.
func (r *stepRun) takeUnit() record.StepUnit {
	r.attempt.mu.Lock()
	defer r.attempt.mu.Unlock()
	unit, _ := r.own.unit.(record.StepUnit)
	r.own.unit = nil
	return unit
}
