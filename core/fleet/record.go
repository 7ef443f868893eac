package fleet

import (
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/ident"
)

// The states of an idempotency record.
const (
	// RecordNone: there is no record; the next request with the key is carried out.
	RecordNone = "none"
	// RecordInFlight: a request is at work, and its lease has not ended.
	RecordInFlight = "in-flight"
	// RecordHandedOver: the request waits for the job that has its ticket (idempotency.HandOver).
	RecordHandedOver = "handed-over"
	// RecordLapsed: the lease of the request has ended before its effect. The next
	// request with the key, if it is the same one, is carried out, unless the endpoint
	// is strict (idempotency.Strict): then the outcome is unknown.
	RecordLapsed = "lapsed"
	// RecordOpen: the lease has ended, steps of the request are stored, and none that must not run twice
	// is under way (idempotency.Step). The next request with the key, or a job, goes on after them.
	RecordOpen = "open"
	// RecordUnknown: the lease has ended after the effect may have happened. Requests
	// with the key are refused until an operator resolves the record.
	RecordUnknown = "unknown"
	// RecordCompleted: the answer is stored.
	RecordCompleted = "completed"
	// RecordUnavailable: the request was carried out, and its answer is not stored.
	RecordUnavailable = "unavailable"
	// RecordExpired: there was a record, and its retention has ended.
	RecordExpired = "expired"
	// RecordDamaged: the value is no record, or a record of an unknown version.
	RecordDamaged = "damaged"
)

// Record is the state of one idempotency key in a store. It shows nothing of the answer but
// its status and size.
type Record struct {
	// ID is the hash of principal and key in the name of the record.
	ID string
	// State has a value of the constants.
	State string
	// Generation is 1, and one more for each time the claim was taken over.
	Generation int64
	// Marked says that the effect may have happened.
	Marked bool
	// Step is the last step with a stored outcome, and StepUnderWay the step with idempotency.Once that
	// has none: its downstream key is DownstreamKey(StepUnderWay). Steps are the names of all stored
	// steps; lists do not have them.
	Step, StepUnderWay string
	Steps              []string
	// Lease is the rest of the claim's lease, or of the time of its ticket.
	Lease time.Duration
	// Ended is the time since the end of the last lease; 0 if it has not ended, or that is not known.
	Ended time.Duration
	// Kept is the time until the record is deleted.
	Kept time.Duration
	// Protocol and Status belong to the stored answer; empty and 0 if there is no answer
	// or it is sealed.
	Protocol string
	Status   int
	// Size is the length of the stored answer in bytes, with its header; Sealed says
	// that it is encrypted (idempotency.Seal).
	Size   int
	Sealed bool
	// Cursor is the value of [RecordQuery.After] with which a list goes on after the record.
	Cursor string
}

// DownstreamKey returns idempotency.DownstreamKey of the request, with the step that the handler
// gave. The service that had the effect knows the request by this key.
func (r *Record) DownstreamKey(step ...string) string { return ident.Downstream(r.ID, step) }

// Record reads the record of an idempotency key. principal is the scope
// (idempotency.Scope; empty under idempotency.Global), key the key without quotes. For
// the key of a function, once.ScopeOf makes the scope, and under idempotency.PerEndpoint or
// a profile idempotency.EndpointScope.
func (f *Fleet) Record(ctx context.Context, principal, key string) (Record, error) {
	return f.RecordByID(ctx, ident.Record(principal, key))
}

// RecordByID is [Fleet.Record] for a record of which only the hash is known: logs and spans name
// a record by it.
func (f *Fleet) RecordByID(ctx context.Context, id string) (Record, error) {
	return f.records.byID(ctx, id)
}

// listedStates are the states that a list can have.
var listedStates = []string{
	RecordInFlight, RecordHandedOver, RecordLapsed, RecordOpen, RecordUnknown, RecordCompleted, RecordUnavailable, RecordExpired, RecordDamaged,
}

// RecordQuery says which records [Fleet.Records] goes through. The zero value is all.
type RecordQuery struct {
	// States, unless empty, are the states of the records. [RecordNone], which no record has, and a text
	// that is no state are an error.
	States []string
	// Older leaves out records with a lease that has not ended, or ended less than so long ago.
	Older time.Duration
	// After, unless empty, is the [Record.Cursor] after which the iteration goes on.
	After string
}

// check returns an error that matches [driver.ErrConfig] if no record can fit.
func (q *RecordQuery) check() error {
	for _, s := range q.States {
		if !slices.Contains(listedStates, s) {
			return fmt.Errorf("%w: the state %q: must be one of %s", driver.ErrConfig, s, strings.Join(listedStates, ", "))
		}
	}
	return nil
}

func (q *RecordQuery) fits(r *Record) bool {
	return r.State != RecordNone && (len(q.States) == 0 || slices.Contains(q.States, r.State)) && (q.Older == 0 || r.Ended >= q.Older)
}

// claims reports whether only records of requests without an end fit.
func (q *RecordQuery) claims() bool {
	return len(q.States) > 0 && !slices.ContainsFunc(q.States, func(s string) bool {
		return !slices.Contains([]string{RecordInFlight, RecordHandedOver, RecordLapsed, RecordOpen, RecordUnknown}, s)
	})
}

// Records goes through the records of all endpoints, as [Fleet.Locks] goes through the locks. It
// reads no answer, so that Protocol, Status, Size and Sealed are empty. An error that matches
// [driver.ErrConfig] says that the query is wrong, and nothing was sent.
func (f *Fleet) Records(ctx context.Context, q RecordQuery) iter.Seq2[Record, error] {
	if err := q.check(); err != nil {
		return failed(err)
	}
	return f.records.list(ctx, q)
}

// failed is a list that cannot be read.
func failed(err error) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) { yield(Record{}, err) }
}

// mostUnknown bounds a count of unknown outcomes.
const mostUnknown = 1000

// Unknown counts the records with an unknown outcome ([RecordUnknown]), of all endpoints, up to 1,000.
// It goes through all records: do not call it for each request. It returns the errors of Records.
func (f *Fleet) Unknown(ctx context.Context) (int, error) {
	found := make(map[string]struct{}) // a list can return a record twice
	for r, err := range f.Records(ctx, RecordQuery{States: []string{RecordUnknown}}) {
		if err != nil {
			return 0, err
		}
		if found[r.ID] = struct{}{}; len(found) == mostUnknown {
			break
		}
	}
	return len(found), nil
}

// answer reads the beginning of a stored answer, as far as it can be read: its version,
// the protocol and the status (core/idempotency/envelope.go).
func (r *Record) answer(envelope []byte) {
	if len(envelope) == 0 {
		r.State = RecordDamaged
		return
	}
	if r.Sealed = envelope[0] == 'S'; r.Sealed || envelope[0] != 1 {
		return
	}
	rest := envelope[1:min(len(envelope), 100)]
	length, n := binary.Uvarint(rest)
	if n <= 0 || length > uint64(len(rest)-n) {
		return
	}
	protocol, rest := rest[n:n+int(length)], rest[n+int(length):] //nolint:gosec // not more than rest has
	if status, n := binary.Uvarint(rest); n > 0 && status <= 999 {
		r.Protocol, r.Status = string(protocol), int(status) //nolint:gosec // at most 999
	}
}
