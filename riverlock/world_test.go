package riverlock_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/riverlock"
)

type updatesKey struct{}

func TestMain(m *testing.M) {
	riverlock.SetMetadata(func(ctx context.Context, key string, value any) error {
		updates, ok := ctx.Value(updatesKey{}).(map[string]any)
		if !ok {
			return errors.New("not in an executor")
		}
		updates[key] = value
		return nil
	})
	goleak.VerifyTestMain(m)
}

// world is a store with locks and records, on a clock of the test.
type world struct {
	*testing.T
	store  *memstore.Store
	locker *core.Locker
	engine *idempotency.Engine
}

func inWorld(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, store: memstore.New()}
		var err error
		if w.locker, err = core.New(w.store); err != nil {
			t.Fatal(err)
		}
		if w.engine, err = idempotency.New(w.store, idempotency.Global()); err != nil {
			t.Fatal(err)
		}
		test(w)
		if err := errors.Join(w.engine.Close(context.Background()), w.locker.Close(context.Background())); err != nil {
			t.Errorf("closing: %v", err)
		}
	})
}

// Fates of a job.
const (
	completed = "completed"
	retryable = "retryable"
	cancelled = "cancelled"
	snoozed   = "snoozed"
)

// run is an attempt.
type run struct {
	fate   string
	err    error         // as the middleware returned it
	pause  time.Duration // of a snooze
	worked bool          // the worker ran
}

// job makes a row, as River has inserted it.
func job(id int64, args string, metadata ...string) *rivertype.JobRow {
	row := &rivertype.JobRow{ID: id, Kind: "charge", EncodedArgs: []byte(args), Metadata: []byte("{}"), CreatedAt: time.Now(), MaxAttempts: 25}
	if len(metadata) > 0 {
		row.Metadata = []byte(metadata[0])
	}
	return row
}

// attempt works a job as the executor of River does, with the middleware in their order.
func (w *world) attempt(row *rivertype.JobRow, worker func(context.Context) error, chain ...rivertype.WorkerMiddleware) run {
	w.Helper()
	var r run
	updates := make(map[string]any)
	next := func(ctx context.Context) error {
		r.worked = true
		return worker(ctx)
	}
	for i := len(chain) - 1; i >= 0; i-- {
		inner, m := next, chain[i]
		next = func(ctx context.Context) error { return m.Work(ctx, row, inner) }
	}
	row.Attempt++
	r.err = next(context.WithValue(w.Context(), updatesKey{}, updates))
	all := make(map[string]any)
	if err := json.Unmarshal(row.Metadata, &all); err != nil {
		w.Fatal(err)
	}
	var snooze *river.JobSnoozeError
	var cancel *river.JobCancelError
	switch {
	case r.err == nil:
		r.fate = completed
	case errors.As(r.err, &snooze):
		r.fate, r.pause = snoozed, snooze.Duration
		row.Attempt--
		n, _ := all["snoozes"].(float64)
		updates["snoozes"] = n + 1
	case errors.As(r.err, &cancel):
		r.fate = cancelled
	default:
		r.fate = retryable
	}
	maps.Copy(all, updates)
	row.Metadata, _ = json.Marshal(all)
	return r
}

// want fails the test unless a job had this fate.
func (w *world) want(r run, fate string, worked bool) {
	w.Helper()
	if r.fate != fate || r.worked != worked {
		w.Errorf("the job is %s (the worker ran: %v) by %v; want %s (%v)", r.fate, r.worked, r.err, fate, worked)
	}
}

func nothing(context.Context) error { return nil }
