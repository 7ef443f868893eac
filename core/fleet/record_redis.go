package fleet

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/rediswire"
)

// recordsAtATime is the number of records that one pipeline reads.
const recordsAtATime = 8

// redisRecords are the records in a Redis.
type redisRecords struct{ wire *rediswire.Store }

func (f *redisRecords) byID(ctx context.Context, id string) (Record, error) {
	all, err := f.readRecords(ctx, []string{id}, true)
	if err != nil {
		return Record{ID: id, State: RecordNone}, err
	}
	return all[0], nil
}

func (f *redisRecords) list(ctx context.Context, q RecordQuery) iter.Seq2[Record, error] {
	last, err := rediswire.ReadPosition(q.After)
	if err != nil {
		return failed(err)
	}
	return func(yield func(Record, error) bool) {
		err := f.wire.Scan(ctx, f.wire.RecordPattern(), last, func(names []string, at rediswire.Position) (bool, error) {
			return f.recordPage(ctx, names, at, last, &q, yield)
		})
		if err != nil {
			yield(Record{}, err)
		}
	}
}

// recordPage goes through the records of a page, after the last one.
func (f *redisRecords) recordPage(
	ctx context.Context, names []string, at, last rediswire.Position, q *RecordQuery, yield func(Record, error) bool,
) (more bool, err error) {
	var ids []string
	for _, name := range names {
		if id, ok := f.wire.RecordOf(name); ok && !at.Passed(last, id) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for some := range slices.Chunk(ids, recordsAtATime) {
		all, err := f.readRecords(ctx, some, false)
		if err != nil {
			return true, err
		}
		for _, r := range all {
			if r.Cursor = at.Of(r.ID); q.fits(&r) && !yield(r, nil) {
				return false, nil
			}
		}
	}
	return true, nil
}

// readRecords reads some records in one pipeline, with their answers or without.
func (f *redisRecords) readRecords(ctx context.Context, ids []string, answers bool) ([]Record, error) {
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
	now, err := f.wire.PipelinedAt(ctx, f.wire.Record(ids[0]), func(p redis.Pipeliner) {
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
