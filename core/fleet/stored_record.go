package fleet

import (
	"context"
	"fmt"
	"iter"

	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/internal/ident"
)

var errNoRecords = fmt.Errorf("%w: idempotency records are on Redis and PostgreSQL", ErrNotServed)

// Record reads the record of an idempotency key, as [Fleet.Record] does.
func (s *Stored) Record(ctx context.Context, principal, key string) (Record, error) {
	return s.RecordByID(ctx, ident.Record(principal, key))
}

// RecordByID is [Stored.Record] by the hash of the record.
func (s *Stored) RecordByID(ctx context.Context, id string) (Record, error) {
	if s.records == nil {
		return Record{ID: id, State: RecordNone}, errNoRecords
	}
	v, err := s.records.LookRecord(ctx, id)
	if err != nil {
		return Record{ID: id, State: RecordNone}, err
	}
	r := recordOf(&v)
	if r.State == RecordCompleted {
		r.answer(v.Response)
		r.Size = v.Size
	}
	return r, nil
}

// Records goes through the records of all endpoints, as [Fleet.Records] does.
func (s *Stored) Records(ctx context.Context, q RecordQuery) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		if s.records == nil {
			yield(Record{}, errNoRecords)
			return
		}
		if err := q.check(); err != nil {
			yield(Record{}, err)
			return
		}
		for v, err := range s.records.ListRecords(ctx, q.After, q.claims()) {
			if err != nil {
				yield(Record{}, err)
				return
			}
			r := recordOf(&v)
			if q.fits(&r) && !yield(r, nil) {
				return
			}
		}
	}
}

// Unknown counts the records with an unknown outcome, as [Fleet.Unknown] does.
func (s *Stored) Unknown(ctx context.Context) (int, error) {
	return countUnknown(ctx, s.Records)
}

// states are the names of the states of records.
var states = map[record.State]string{
	0: RecordNone, record.StateInFlight: RecordInFlight, record.StateGranted: RecordLapsed, record.StateUnknown: RecordUnknown,
	record.StateCompleted: RecordCompleted, record.StateUnavailable: RecordUnavailable, record.StateExpired: RecordExpired,
}

func recordOf(v *record.View) Record {
	r := Record{
		ID: v.ID, State: states[v.State], Generation: v.Generation, Marked: v.Marked, Kept: v.Kept,
		Ended: max(0, -v.Left), Cursor: v.ID,
	}
	if v.HandedOver {
		r.State = RecordHandedOver
	}
	if v.State == record.StateInFlight {
		r.Lease = v.Left
	}
	return r
}
