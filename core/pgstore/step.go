package pgstore

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
)

// Step implements [record.Store].
func (s *Store) Step(ctx context.Context, ask record.StepRequest) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", driver.ErrUnavailable, context.Cause(ctx))
	}
	ctx, cancel := until(ctx, ask.Deadline)
	defer cancel()
	_, err := inTime(ctx, s, func() (none, error) {
		var owned bool
		_, err := s.try(ctx, ask.Deadline, func(ctx context.Context, q querier) (err error) {
			owned, err = s.step(ctx, q, ask, s.rowWait())
			return err
		})
		if err == nil && !owned {
			err = driver.ErrNotOwner
		}
		return none{}, err
	})
	return err
}

// step stores the steps, and reports whether the record is the token's. If wait is empty, q is the
// transaction of a step.
func (s *Store) step(ctx context.Context, q querier, ask record.StepRequest, wait string) (owned bool, err error) {
	err = q.QueryRowContext(ctx, s.text.Load().step, ask.ID, ask.Token, microseconds(ask.Lease), microseconds(ask.Retention), wait,
		ask.Log, ask.Last, ask.Open).Scan(&owned)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return owned, err
}

// CommitStep implements [record.StepUnit].
func (w *work) CommitStep(ctx context.Context, ask record.StepRequest) error {
	ctx, cancel := until(ctx, ask.Deadline)
	defer cancel()
	_, err := inTime(ctx, w.store, func() (none, error) { return none{}, w.commitStep(ctx, ask) })
	return err
}

func (w *work) commitStep(ctx context.Context, ask record.StepRequest) error {
	defer w.close()
	deadline := ask.Deadline.Add(-settleWait)
	// Until the commit is sent, everything that fails ends in a rollback.
	bound, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
	owned, err := w.store.step(bound, w.tx, ask, "")
	if err == nil && !owned {
		err = own(bound, w.tx, w.token)
	}
	cancel()
	switch {
	case err != nil:
		return w.failed(err)
	case !owned:
		w.abort()
		return driver.ErrNotOwner
	}
	return w.finish(deadline, func() (bool, error) { return w.store.settleStep(ctx, ask) })
}

// settleStep finds out, as settle does, whether the transaction of a step was committed.
func (s *Store) settleStep(ctx context.Context, ask record.StepRequest) (committed bool, err error) {
	lost := false
	_, err = s.try(ctx, ask.Deadline, func(ctx context.Context, q querier) error {
		r, err := s.settled(ctx, q, ask.ID)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		lost = err != nil || r.token.String != ask.Token || r.state.String != "c"
		committed = !lost && bytes.HasPrefix(r.steps, ask.Log)
		return nil
	})
	if err == nil && lost {
		err = driver.ErrNotOwner // another attempt has the record, with the step or without it
	}
	return committed, err
}
