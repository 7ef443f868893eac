package pgstore

import (
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
