package record

import (
	"context"
	"iter"
	"time"
)

// Lister is an optional interface of a [Store]: it shows its records to operators, as package
// fleet does. All methods are safe for concurrent use.
type Lister interface {
	// LookRecord returns the record with an id. A record that is not there has the State 0.
	LookRecord(ctx context.Context, id string) (View, error)

	// ListRecords goes through the records, or goes on after a [View.Cursor]. claims
	// leaves out the records of requests that have ended. It reads a bounded page at a time. A record
	// that is changed meanwhile may come twice. An error ends the iteration.
	ListRecords(ctx context.Context, after string, claims bool) iter.Seq2[View, error]
}

// View is the state of a record, for an operator.
type View struct {
	ID string
	// Cursor is the text with which a list goes on after the record; empty: it is the ID.
	Cursor string
	// Damaged says that the data is not a record, or has an unknown version. The State is 0 then.
	Damaged bool
	// State is StateInFlight, StateCompleted, StateUnavailable, StateUnknown or StateExpired;
	// StateGranted of a claim that has lapsed before its effect.
	State State
	// Generation is 1, and one more for each time the claim was taken over.
	Generation int64
	// Marked says that the effect may have happened, and HandedOver that the claim, in flight, waits
	// for the job with its ticket.
	Marked, HandedOver bool
	// Left is the rest of the lease of the claim, or negative the time since its end.
	Left time.Duration
	// Kept is the time until the record is deleted.
	Kept time.Duration
	// Step is the name of the last step with an outcome; empty if no step is stored. Open is the name of
	// a step that is under way and must not run twice. Log, which lists do not have, has all steps
	// ([StepRequest]).
	Step, Open string
	Log        []byte
	// Response is the beginning of the stored response, and Size the length of the whole. Lists
	// do not have the beginning.
	Response []byte
	Size     int
}
