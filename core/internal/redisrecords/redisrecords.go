// Package redisrecords reads the records of idempotent requests in Redis, for the store and for
// package fleet. It writes nothing.
package redisrecords

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
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/internal/rediswire"
)

const (
	// atATime is the number of records that one pipeline reads.
	atATime = 8
	// lookBytes bounds the part of a response that a look returns.
	lookBytes = 100
)

// Lister is a [record.Lister]. The order of a list is the order of the servers' scans.
type Lister struct{ Wire *rediswire.Store }

var _ record.Lister = Lister{}

// LookRecord implements [record.Lister].
func (l Lister) LookRecord(ctx context.Context, id string) (record.View, error) {
	all, err := l.read(ctx, []string{id}, true)
	if err != nil {
		return record.View{ID: id}, err
	}
	return all[0], nil
}

// ListRecords implements [record.Lister].
func (l Lister) ListRecords(ctx context.Context, after string, claims bool) iter.Seq2[record.View, error] {
	return func(yield func(record.View, error) bool) {
		last, err := rediswire.ReadPosition(after)
		if err == nil {
			err = l.Wire.Scan(ctx, l.Wire.RecordPattern(), last, func(names []string, at rediswire.Position) (bool, error) {
				return l.page(ctx, names, at, last, claims, yield)
			})
		}
		if err != nil {
			yield(record.View{}, err)
		}
	}
}

// page goes through the records of a page, after the last one.
func (l Lister) page(
	ctx context.Context, names []string, at, last rediswire.Position, claims bool, yield func(record.View, error) bool,
) (more bool, err error) {
	var ids []string
	for _, name := range names {
		if id, ok := l.Wire.RecordOf(name); ok && !at.Passed(last, id) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for some := range slices.Chunk(ids, atATime) {
		all, err := l.read(ctx, some, false)
		if err != nil {
			return true, err
		}
		for _, v := range all {
			ended := v.State == record.StateCompleted || v.State == record.StateUnavailable || v.State == record.StateExpired
			v.Cursor = at.Of(v.ID)
			if (v.State != 0 || v.Damaged) && (!claims || !ended) && !yield(v, nil) {
				return false, nil
			}
		}
	}
	return true, nil
}

// The fields of a record that are read; the last two only by a look.
var fields = []string{"v", "t", "s", "g", "u", "m", "h", "e", "n", "o", "r", "l"}

// read reads some records in one pipeline, whole or without responses and steps.
func (l Lister) read(ctx context.Context, ids []string, whole bool) ([]record.View, error) {
	wanted := fields
	if !whole {
		wanted = fields[:len(fields)-2]
	}
	type reading struct {
		fields *redis.SliceCmd
		kept   *redis.DurationCmd
		gone   *redis.IntCmd
	}
	all := make([]reading, len(ids))
	now, err := l.Wire.PipelinedAt(ctx, l.Wire.Record(ids[0]), func(p redis.Pipeliner) {
		for i, id := range ids {
			name := l.Wire.Record(id)
			all[i] = reading{p.HMGet(ctx, name, wanted...), p.PTTL(ctx, name), p.Exists(ctx, rediswire.TombstoneOf(name))}
		}
	})
	if err != nil {
		return nil, err
	}
	views := make([]record.View, len(ids))
	for i, id := range ids {
		v := &views[i]
		v.ID = id
		err := rediswire.Wrap(cmp.Or(all[i].fields.Err(), all[i].kept.Err(), all[i].gone.Err()))
		switch {
		case errors.Is(err, driver.ErrKeyOccupied):
			v.Damaged = true
		case err != nil:
			return nil, err
		case all[i].kept.Val() != -2:
			v.Kept = all[i].kept.Val()
			view(v, all[i].fields.Val(), now)
		case all[i].gone.Val() == 1:
			v.State = record.StateExpired
		}
	}
	return views, nil
}

// view reads the fields of a record.
func view(v *record.View, all []any, now time.Time) {
	values := make(map[string]string, len(all))
	for i, field := range all {
		values[fields[i]], _ = field.(string)
	}
	var err error
	v.Generation, err = strconv.ParseInt(values["g"], 10, 64)
	v.Marked = values["m"] != "" && values["m"] != "s"
	ends, endsErr := strconv.ParseInt(values["u"], 10, 64)
	if endsErr == nil && ends > 0 {
		v.Left = time.UnixMilli(ends).Sub(now)
	}
	ticket := values["h"]
	handed := ticket != "" && ticket != "-"
	until := time.UnixMilli(0)
	if e, err := strconv.ParseInt(values["e"], 10, 64); err == nil && handed && values["m"] == "" {
		until = time.UnixMilli(e)
	}
	switch {
	case values["v"] != "1" || values["t"] == "" || err != nil:
		v.Damaged = true
	case values["s"] == "d":
		v.State = record.StateCompleted
		v.Response, v.Size = []byte(values["r"][:min(len(values["r"]), lookBytes)]), len(values["r"])
	case values["s"] == "x":
		v.State = record.StateUnavailable
	case values["s"] != "c" || endsErr != nil:
		v.Damaged = true
	case now.UnixMilli() < ends || now.Before(until):
		v.State, v.Left = record.StateInFlight, max(v.Left, until.Sub(now))
		v.HandedOver = handed && (values["t"] == ticket || values["t"] == "-" || now.UnixMilli() >= ends)
	case values["m"] != "":
		v.State = record.StateUnknown
	default:
		v.State = record.StateGranted
	}
	if v.State != record.StateCompleted && v.State != record.StateUnavailable {
		v.Step, v.Open, v.Log = values["n"], values["o"], []byte(values["l"])
	}
}
