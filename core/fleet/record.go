package fleet

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/ident"
	"github.com/interlock-go/interlock/core/internal/rediswire"
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
	// Lease is what remains of the claim's lease, or of the time of its ticket.
	Lease time.Duration
	// Ended is how long ago the last lease ended; 0 if it has not, or that is not known.
	Ended time.Duration
	// Kept is for how long the record is kept.
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
	all, err := f.readRecords(ctx, []string{id}, true)
	if err != nil {
		return Record{ID: id, State: RecordNone}, err
	}
	return all[0], nil
}

// listedStates are the states that a list can have.
var listedStates = []string{
	RecordInFlight, RecordHandedOver, RecordLapsed, RecordUnknown, RecordCompleted, RecordUnavailable, RecordExpired, RecordDamaged,
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
		return !slices.Contains([]string{RecordInFlight, RecordHandedOver, RecordLapsed, RecordUnknown}, s)
	})
}

// Records goes through the records of all endpoints, as [Fleet.Locks] goes through the locks. It
// reads no answer, so that Protocol, Status, Size and Sealed are empty. An error that matches
// [driver.ErrConfig] says that the query is wrong, and nothing was sent.
func (f *Fleet) Records(ctx context.Context, q RecordQuery) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		last, err := readCursor(q.After)
		if err = cmp.Or(q.check(), err); err == nil {
			err = f.scan(ctx, f.wire.RecordPattern(), last, func(names []string, at position) (bool, error) {
				return f.recordPage(ctx, names, at, last, &q, yield)
			})
		}
		if err != nil {
			yield(Record{}, err)
		}
	}
}

// mostUnknown is where a count of unknown outcomes ends.
const mostUnknown = 1000

// Unknown counts the records with an unknown outcome ([RecordUnknown]), of all endpoints, up to 1,000.
// It goes through all records: do not call it for each request. The errors are those of Records.
func (f *Fleet) Unknown(ctx context.Context) (int, error) {
	return countUnknown(ctx, f.Records)
}

func countUnknown(ctx context.Context, records func(context.Context, RecordQuery) iter.Seq2[Record, error]) (int, error) {
	found := make(map[string]struct{}) // a list can return a record twice
	for r, err := range records(ctx, RecordQuery{States: []string{RecordUnknown}}) {
		if err != nil {
			return 0, err
		}
		if found[r.ID] = struct{}{}; len(found) == mostUnknown {
			break
		}
	}
	return len(found), nil
}

// recordPage goes through the records of a page, after the last one.
func (f *Fleet) recordPage(
	ctx context.Context, names []string, at, last position, q *RecordQuery, yield func(Record, error) bool,
) (more bool, err error) {
	var ids []string
	for _, name := range names {
		if id, ok := f.wire.RecordOf(name); ok && (at.cursor != last.cursor || at.addr() != last.server || id > last.id) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for some := range slices.Chunk(ids, readAtATime) {
		all, err := f.readRecords(ctx, some, false)
		if err != nil {
			return true, err
		}
		for _, r := range all {
			at.id = r.ID
			if r.Cursor = at.String(); q.fits(&r) && !yield(r, nil) {
				return false, nil
			}
		}
	}
	return true, nil
}

// readRecords reads some records in one pipeline, with their answers or without.
func (f *Fleet) readRecords(ctx context.Context, ids []string, answers bool) ([]Record, error) {
	fields := []string{"v", "t", "s", "g", "u", "m", "h"}
	if answers {
		fields = append(fields, "r")
	}
	type reading struct {
		fields *redis.SliceCmd
		kept   *redis.DurationCmd
		gone   *redis.IntCmd
	}
	all := make([]reading, len(ids))
	now, err := f.pipelinedAt(ctx, f.wire.Record(ids[0]), func(p redis.Pipeliner) {
		for i, id := range ids {
			name := f.wire.Record(id)
			all[i] = reading{p.HMGet(ctx, name, fields...), p.PTTL(ctx, name), p.Exists(ctx, rediswire.TombstoneOf(name))}
		}
	})
	if err != nil {
		return nil, err
	}
	records := make([]Record, len(ids))
	for i, id := range ids {
		r := &records[i]
		r.ID, r.State = id, RecordNone
		err := rediswire.Wrap(cmp.Or(all[i].fields.Err(), all[i].kept.Err(), all[i].gone.Err()))
		switch {
		case errors.Is(err, driver.ErrKeyOccupied):
			r.State = RecordDamaged
		case err != nil:
			return nil, err
		case all[i].kept.Val() != -2:
			r.Kept = all[i].kept.Val()
			r.read(all[i].fields.Val(), now)
		case all[i].gone.Val() == 1:
			r.State = RecordExpired
		}
	}
	return records, nil
}

// read reads the fields of a record.
func (r *Record) read(all []any, now time.Time) {
	text := func(i int) string {
		if i < len(all) {
			s, _ := all[i].(string)
			return s
		}
		return ""
	}
	var err error
	r.Generation, err = strconv.ParseInt(text(3), 10, 64)
	r.Marked = text(5) != ""
	state := text(2)
	ends, endsErr := strconv.ParseInt(text(4), 10, 64)
	if endsErr == nil && ends > 0 {
		r.Ended = max(0, now.Sub(time.UnixMilli(ends)))
	}
	switch {
	case text(0) != "1" || text(1) == "" || err != nil:
		r.State = RecordDamaged
	case state == "d":
		if r.State = RecordCompleted; len(all) > 7 {
			r.answer([]byte(text(7)))
			r.Size = len(text(7))
		}
	case state == "x":
		r.State = RecordUnavailable
	case state != "c" || endsErr != nil:
		r.State = RecordDamaged
	case now.UnixMilli() < ends:
		r.State, r.Lease = RecordInFlight, time.UnixMilli(ends).Sub(now)
		if ticket := text(6); ticket != "" && ticket != "-" && (text(1) == ticket || text(1) == "-") {
			r.State = RecordHandedOver
		}
	case r.Marked:
		r.State = RecordUnknown
	default:
		r.State = RecordLapsed
	}
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
