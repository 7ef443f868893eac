package fleet

import (
	"cmp"
	"context"
	"fmt"
	"iter"

	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/internal/steplog"
)

var errNoRecords = fmt.Errorf("%w: idempotency records are on Redis and PostgreSQL", ErrNotServed)

// storeRecords are the records in a store; a nil Lister has none.
type storeRecords struct{ record.Lister }

func (s storeRecords) byID(ctx context.Context, id string) (Record, error) {
	none := Record{ID: id, State: RecordNone}
	if s.Lister == nil {
		return none, errNoRecords
	}
	v, err := s.LookRecord(ctx, id)
	if err != nil {
		return none, err
	}
	r := recordOf(&v)
	if r.State == RecordCompleted {
		r.answer(v.Response)
		r.Size = v.Size
	}
	r.steps(string(v.Log))
	return r, nil
}

func (s storeRecords) list(ctx context.Context, q RecordQuery) iter.Seq2[Record, error] {
	if s.Lister == nil {
		return failed(errNoRecords)
	}
	return func(yield func(Record, error) bool) {
		for v, err := range s.ListRecords(ctx, q.After, q.claims()) {
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

// states are the names of the states of records.
var states = map[record.State]string{
	0: RecordNone, record.StateInFlight: RecordInFlight, record.StateGranted: RecordLapsed, record.StateUnknown: RecordUnknown,
	record.StateCompleted: RecordCompleted, record.StateUnavailable: RecordUnavailable, record.StateExpired: RecordExpired,
}

func recordOf(v *record.View) Record {
	r := Record{
		ID: v.ID, State: states[v.State], Generation: v.Generation, Marked: v.Marked, Kept: v.Kept,
		Ended: max(0, -v.Left), Cursor: cmp.Or(v.Cursor, v.ID), Step: v.Step, StepUnderWay: v.Open,
	}
	switch {
	case v.Damaged:
		r.State = RecordDamaged
	case r.State == RecordLapsed && v.Step != "":
		r.State = RecordOpen
	}
	if v.HandedOver {
		r.State = RecordHandedOver
	}
	if v.State == record.StateInFlight {
		r.Lease = v.Left
	}
	return r
}

// steps reads the names of the stored steps.
func (r *Record) steps(log string) {
	all, err := steplog.Read(log)
	if err != nil {
		r.State = RecordDamaged
		return
	}
	for _, e := range all {
		if e.Kind.Outcome() {
			r.Steps = append(r.Steps, e.Name)
		}
	}
}
