package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
)

const (
	// recordPage is the number of rows that one statement of ListRecords reads.
	recordPage = 500
	// lookBytes bounds the part of a response that a look returns.
	lookBytes = 100
)

var _ record.Lister = (*Store)(nil)

// LookRecord implements [record.Lister].
func (s *Store) LookRecord(ctx context.Context, id string) (record.View, error) {
	views, _, err := s.recordPage(ctx, id, false, 1, false, lookBytes)
	if err != nil || len(views) == 0 || views[0].ID != id {
		return record.View{ID: id}, err
	}
	return views[0], nil
}

// ListRecords implements [record.Lister]. The order of the ids is the database's.
func (s *Store) ListRecords(ctx context.Context, after string, claims bool) iter.Seq2[record.View, error] {
	return func(yield func(record.View, error) bool) {
		for full := true; full; {
			var views []record.View
			var err error
			if views, full, err = s.recordPage(ctx, after, true, recordPage, claims, 0); err != nil {
				yield(record.View{}, err)
				return
			}
			for _, v := range views {
				done := v.State == record.StateCompleted || v.State == record.StateUnavailable || v.State == record.StateExpired
				if after = v.ID; v.State != 0 && (!claims || !done) && !yield(v, nil) {
					return
				}
			}
		}
	}
}

// recordPage reads the records from an id on, or after it. full says that there may be more.
func (s *Store) recordPage(
	ctx context.Context, from string, after bool, most int, claims bool, bytes int,
) (views []record.View, full bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	err = s.on(ctx, s.records, func(conn *sql.Conn) error {
		rows, err := conn.QueryContext(ctx, s.text.Load().look, from, after, most, claims, bytes)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, rows.Close()) }()
		for rows.Next() {
			var v record.View
			var state string
			var over, remembered bool
			var left, kept int64
			var n int
			if err := rows.Scan(&v.ID, &state, &over, &remembered, &v.Generation, &v.Marked, &v.HandedOver, &left, &kept, &v.Response, &v.Size, &n,
				&v.Step, &v.Open, &v.Log); err != nil {
				return err
			}
			v.Left, v.Kept = time.Duration(left)*time.Microsecond, max(0, time.Duration(kept)*time.Microsecond)
			v.State = viewed(state, over, remembered, left, v.Marked || v.Open != "")
			v.HandedOver = v.HandedOver && v.State == record.StateInFlight
			views, full = append(views, v), n == most
		}
		return rows.Err()
	})
	if err != nil {
		return nil, false, fmt.Errorf("%w: %w", driver.ErrUnavailable, explain(err))
	}
	return views, full, nil
}

// viewed is the state of a row for an operator; zero if it does not count any more.
func viewed(state string, over, remembered bool, left int64, marked bool) record.State {
	switch {
	case over && remembered:
		return record.StateExpired
	case over:
		return 0
	case state == "d":
		return record.StateCompleted
	case state == "x":
		return record.StateUnavailable
	case left > 0:
		return record.StateInFlight
	case marked:
		return record.StateUnknown
	}
	return record.StateGranted
}
