package riverlock_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"go.opentelemetry.io/otel/trace"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/riverlock"
)

type charge struct {
	Account string `json:"account"`
}

func (charge) Kind() string { return "charge" }

// carried returns the metadata that Carry makes.
func (w *world) carried(ctx context.Context, opts *river.InsertOpts, along once.Along) string {
	w.Helper()
	all, err := riverlock.Carry(ctx, charge{"42"}, opts, along)
	if err != nil {
		w.Fatal(err)
	}
	return string(all.Metadata)
}

// A process can die after it has inserted a job and before it has stored that. The attempt after
// that inserts a second job.
func TestAHandlerThatRunsAgainInsertsTheSameWork(t *testing.T) {
	inWorld(t, func(w *world) {
		var inserted []string
		attempt := func(failure error) {
			_, _ = once.Do(t.Context(), w.engine, "order-7", 0, func(ctx context.Context, _ int) (int, error) {
				for range 2 {
					inserted = append(inserted, w.carried(ctx, nil, once.Along{}))
				}
				return 0, failure
			})
		}
		attempt(errors.New("died"))
		attempt(nil)
		m := riverlock.Idempotent(w.engine)
		for i, metadata := range inserted {
			w.want(w.attempt(job(int64(i), `{"account": "42"}`, metadata), nothing, m), completed, i < 2)
		}
		if len(inserted) != 4 || inserted[0] != inserted[2] || inserted[0] == inserted[1] {
			t.Errorf("inserted with %q; want two jobs, twice", inserted)
		}
	})
}

func TestAJobTakesWhatGoesAlong(t *testing.T) {
	inWorld(t, func(w *world) {
		span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
		lease, err := w.locker.Lock(trace.ContextWithSpanContext(t.Context(), span), "account/42")
		if err != nil {
			t.Fatal(err)
		}
		mine := &river.InsertOpts{Priority: 2, Metadata: []byte(`{"id": 9007199254740993}`)}
		all, err := riverlock.Carry(lease.Context(), charge{"42"}, mine, once.Along{Fences: true})
		if err != nil {
			t.Fatal(err)
		}
		want, _ := json.Marshal(map[string]any{
			"id": json.Number("9007199254740993"), "traceparent": "00-01000000000000000000000000000000-0200000000000000-01",
			core.FencesHeader: fmt.Sprint("account/42=", lease.Token()),
		})
		if string(all.Metadata) != string(want) || all.Priority != 2 || string(mine.Metadata) != `{"id": 9007199254740993}` {
			t.Errorf("%+v from %+v; want the metadata %s", all, mine, want)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if metadata := w.carried(t.Context(), nil, once.Along{Fences: true}); metadata != "" {
			t.Errorf("metadata %q; want nothing along", metadata)
		}
		if _, err := riverlock.Carry(lease.Context(), charge{}, &river.InsertOpts{Metadata: []byte("[]")}, once.Along{}); err == nil {
			t.Error("metadata that is a list was accepted")
		}
	})
}

func TestAJobGoesOnWithTheLockThatItCameWith(t *testing.T) {
	inWorld(t, func(w *world) {
		guard := riverlock.Guard(core.Serialize(w.locker, "account/{account}", core.Wait(0)))
		lease, err := w.locker.Lock(t.Context(), "account/42")
		if err != nil {
			t.Fatal(err)
		}
		ticket, err := lease.HandOver(t.Context(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		row := job(1, `{"account": "42"}`, w.carried(t.Context(), nil, once.Along{Lock: ticket}))
		w.want(w.attempt(job(2, `{"account": "42"}`), nothing, guard), snoozed, false)
		var token int64
		for range 2 { // the second attempt locks in turn
			r := w.attempt(row, func(ctx context.Context) error {
				if next := core.LeaseFromContext(ctx).Token(); next > token {
					token = next
				} else {
					w.Errorf("token %d after %d", next, token)
				}
				return nil
			}, guard)
			w.want(r, completed, true)
		}
		cut := job(3, `{"account": "42"}`, `{"`+once.LockTicket+`": "cut"}`)
		r := w.attempt(cut, nothing, guard)
		if w.want(r, cancelled, false); !errors.Is(r.err, core.ErrTicket) {
			w.Errorf("a ticket that was cut: %v; want %v", r.err, core.ErrTicket)
		}
	})
}

type unique struct{ charge }

func (unique) InsertOpts() river.InsertOpts {
	return river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}}
}

// The first attempt of a request inserts its job and fails, so its ticket has run out: the worker
// returns nil. The job of the second attempt has the ticket that counts.
func TestTheJobWithTheTicketThatCountsIsCarriedOut(t *testing.T) {
	inWorld(t, func(w *world) {
		paid := 0
		work := func(row *rivertype.JobRow) func(ctx context.Context) error {
			return func(ctx context.Context) error {
				var metadata map[string]string
				var claim idempotency.Ticket
				err := json.Unmarshal(row.Metadata, &metadata)
				if err == nil {
					err = claim.UnmarshalText([]byte(metadata[once.ClaimTicket]))
				}
				if err != nil {
					return err
				}
				err = w.engine.TakeOver(ctx, claim, func(context.Context) (endpoint.Response, error) {
					paid++
					return endpoint.Response{Status: http.StatusCreated}, nil
				})
				if errors.Is(err, idempotency.ErrTicketRanOut) {
					return nil
				}
				return err
			}
		}
		attempt := func(status int) (metadata string) {
			h := httplock.Idempotent(w.engine)(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				claim, err := idempotency.HandOver(r.Context(), time.Hour)
				if err != nil {
					t.Error(err)
				}
				along := once.Along{Claim: claim}
				metadata = w.carried(r.Context(), nil, along)
				if _, err := riverlock.Carry(r.Context(), unique{}, nil, along); !errors.Is(err, core.ErrConfig) {
					t.Errorf("a unique job with a ticket: %v; want %v", err, core.ErrConfig)
				}
				rw.WriteHeader(status)
			}))
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/payments", nil)
			r.Header.Set(idempotency.KeyHeader, "order-17")
			h.ServeHTTP(httptest.NewRecorder(), r)
			return metadata
		}
		m := riverlock.Idempotent(w.engine)
		for i, status := range []int{http.StatusServiceUnavailable, http.StatusAccepted} {
			row := job(int64(i), `{"account": "42"}`, attempt(status))
			w.want(w.attempt(row, work(row), m), completed, true)
		}
		if paid != 1 {
			t.Errorf("paid %d times; want once, by the job of the second attempt", paid)
		}
	})
}

// A job with the token of a former holder is cancelled. That is not the result of its work: the next
// attempt of its producer has a lock and a token of its own.
func TestTheJobOfTheNextHolderIsCarriedOut(t *testing.T) {
	inWorld(t, func(w *world) {
		var latest int64
		rule := core.Fenced("account/{account}", func(_ context.Context, fences []core.Fence) error {
			if fences[0].Token < latest {
				return core.ErrLost
			}
			return nil
		})
		inserted := make([]string, 0, 2)
		for range 2 {
			_, _ = once.Do(t.Context(), w.engine, "order-7", 0, func(ctx context.Context, _ int) (int, error) {
				lease, err := w.locker.Lock(ctx, "account/42")
				if err != nil {
					t.Fatal(err)
				}
				inserted = append(inserted, w.carried(lease.Context(), nil, once.Along{Fences: true}))
				latest = lease.Token()
				return 0, errors.Join(errors.New("died"), lease.Release(ctx))
			})
		}
		for i, want := range []string{cancelled, completed, completed} {
			row := job(int64(i), `{"account": "42"}`, inserted[min(i, 1)])
			w.want(w.attempt(row, nothing, riverlock.Idempotent(w.engine), riverlock.Guard(rule)), want, i == 1)
		}
	})
}
