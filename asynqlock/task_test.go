package asynqlock_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"go.opentelemetry.io/otel/trace"

	"github.com/interlock-go/interlock/asynqlock"
	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/httplock"
)

// A process can die after it has enqueued a task and before it has stored that. The attempt after
// that enqueues the task again, and it is carried out once.
func TestAHandlerThatRunsAgainEnqueuesTheSameTask(t *testing.T) {
	w := newWorld(t)
	attempt := func(failure error) (enqueued error) {
		_, _ = once.Do(t.Context(), w.engine, "order-7", 0, func(ctx context.Context, _ int) (int, error) {
			task, err := asynqlock.NewTask(ctx, "charge", []byte("30 EUR"), nil, once.Along{})
			if err != nil {
				t.Fatal(err)
			}
			_, enqueued = w.client.Enqueue(task)
			return 0, failure
		})
		return enqueued
	}
	if err := attempt(errors.New("died")); err != nil {
		t.Fatal(err)
	}
	if err := attempt(nil); !errors.Is(err, asynq.ErrTaskIDConflict) {
		t.Errorf("the attempt after the death: %v; want %v, since the task is there", err, asynq.ErrTaskIDConflict)
	}
}

func TestATaskTakesWhatGoesAlong(t *testing.T) {
	w := newWorld(t)
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	lease, err := w.locker.Lock(trace.ContextWithSpanContext(t.Context(), span), "account/42")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lease.Release(t.Context()) }()
	handed, err := w.locker.Lock(t.Context(), "account/7")
	if err != nil {
		t.Fatal(err)
	}
	lock, err := handed.HandOver(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	mine := map[string]string{"account": "42"}
	task, err := asynqlock.NewTask(lease.Context(), "charge", []byte("30 EUR"), mine, once.Along{Lock: lock, Fences: true})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"account": "42", "Interlock-Lock-Ticket": lock.Text(),
		"traceparent":     "00-01000000000000000000000000000000-0200000000000000-01",
		core.FencesHeader: fmt.Sprint("account/42=", lease.Token()),
	}
	if fmt.Sprint(task.Headers()) != fmt.Sprint(want) || len(mine) != 1 || task.Type() != "charge" || string(task.Payload()) != "30 EUR" {
		t.Errorf("%s %q with %v, from %v; want the headers %v", task.Type(), task.Payload(), task.Headers(), mine, want)
	}
	if task, err := asynqlock.NewTask(t.Context(), "charge", nil, nil, once.Along{Fences: true}); err != nil || len(task.Headers()) != 0 {
		t.Errorf("%v, %v; want nothing along", task.Headers(), err)
	}
}

// The rule of a consumer reads the tokens of a task as if a request had brought them, and its context knows
// the producer.
func TestATaskOfAnOutdatedHolderIsArchived(t *testing.T) {
	w := newWorld(t)
	var latest int64
	rule := core.Fenced("account/{account}", func(_ context.Context, fences []core.Fence) error {
		if fences[0].Token < latest {
			return core.ErrLost
		}
		return nil
	})
	runs := 0
	h := asynqlock.Guard(rule)(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		runs++
		if want := (observe.Producer{Parent: "parent", State: "state"}); len(core.Fences(ctx)) != 1 || observe.ProducerOf(ctx) != want {
			t.Errorf("fences %v, producer %+v; want those of the task", core.Fences(ctx), observe.ProducerOf(ctx))
		}
		return nil
	}))
	lease, err := w.locker.Lock(t.Context(), "account/42")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lease.Release(t.Context()) }()
	task, err := asynqlock.NewTask(lease.Context(), "charge", nil,
		map[string]string{"account": "42", "traceparent": "parent", "tracestate": "state"}, once.Along{Fences: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.ProcessTask(t.Context(), task); err != nil || runs != 1 {
		t.Errorf("%v after %d runs", err, runs)
	}
	latest = lease.Token() + 1
	err = h.ProcessTask(t.Context(), task)
	var refused *once.RefusedError
	if !errors.As(err, &refused) || refused.Refusal.Reason != reason.StaleToken || !errors.Is(err, asynq.SkipRetry) || runs != 1 {
		t.Errorf("%v after %d runs; want %s, archived", err, runs, reason.StaleToken)
	}
}

// The rule of a consumer goes on with the lock that its task came with.
func TestARuleGoesOnWithTheLockOfItsTask(t *testing.T) {
	w := newWorld(t)
	lease, err := w.locker.Lock(t.Context(), "account/42")
	if err != nil {
		t.Fatal(err)
	}
	ticket, err := lease.HandOver(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	runs := 0
	h := asynqlock.Guard(core.Serialize(w.locker, "account/{account}", core.Wait(0)))(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		runs++
		return nil
	}))
	task, err := asynqlock.NewTask(t.Context(), "charge", nil, map[string]string{"account": "42"}, once.Along{Lock: ticket})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second delivery locks in turn
		if err := h.ProcessTask(t.Context(), task); err != nil {
			t.Errorf("%v; want the lock of the task", err)
		}
	}
	err = h.ProcessTask(t.Context(), asynq.NewTaskWithHeaders("charge", nil, map[string]string{"account": "42", once.LockTicket: "cut"}))
	if !errors.Is(err, core.ErrTicket) || !errors.Is(err, asynq.SkipRetry) || runs != 2 {
		t.Errorf("with a ticket that was cut: %v after %d runs; want it archived", err, runs)
	}
}

// request is an attempt of a request that sends a task and answers with a status.
func (w *world) request(status int, task func(ctx context.Context) (*asynq.Task, error)) (enqueued error) {
	w.Helper()
	h := httplock.Idempotent(w.engine)(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		task, err := task(r.Context())
		if err != nil {
			w.Error(err)
			return
		}
		_, enqueued = w.client.Enqueue(task, asynq.Retention(time.Hour), asynq.MaxRetry(5))
		rw.WriteHeader(status)
	}))
	r := httptest.NewRequestWithContext(w.Context(), http.MethodPost, "/payments", nil)
	r.Header.Set(idempotency.KeyHeader, "order-17")
	h.ServeHTTP(httptest.NewRecorder(), r)
	return enqueued
}

// The first attempt of a request enqueues its task and fails, so its ticket has run out: the
// consumer acknowledges the task. The task of the second attempt has the ticket that counts.
func TestTheTaskWithTheTicketThatCountsIsCarriedOut(t *testing.T) {
	for name, inPayload := range map[string]bool{"in the headers": false, "in the payload": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			taken, paid := make(chan error, 10), make(chan struct{}, 10)
			w.serve(asynqlock.Idempotent(w.engine), func(ctx context.Context, task *asynq.Task) error {
				text := []byte(task.Headers()[once.ClaimTicket])
				if inPayload {
					text = task.Payload()
				}
				var claim idempotency.Ticket
				if err := claim.UnmarshalText(text); err != nil {
					return err
				}
				err := w.engine.TakeOver(ctx, claim, func(context.Context) (endpoint.Response, error) {
					paid <- struct{}{}
					return endpoint.Response{Status: http.StatusCreated}, nil
				})
				taken <- err
				if errors.Is(err, idempotency.ErrTicketRanOut) {
					err = nil
				}
				return err
			})
			task := func(ctx context.Context) (*asynq.Task, error) {
				claim, err := idempotency.HandOver(ctx, time.Hour)
				if err != nil {
					return nil, err
				}
				if !inPayload {
					return asynqlock.NewTask(ctx, "charge", []byte("30 EUR"), nil, once.Along{Claim: claim})
				}
				text, err := claim.MarshalText()
				if err != nil {
					return nil, err
				}
				return asynqlock.NewTask(ctx, "charge", text, nil, once.Along{})
			}
			for _, want := range []error{idempotency.ErrTicketRanOut, nil} {
				status := http.StatusAccepted
				if want != nil {
					status = http.StatusServiceUnavailable
				}
				w.pause(true) // until the request has been answered
				if err := w.request(status, task); err != nil {
					t.Fatalf("enqueuing the task of an attempt: %v; want another task for each ticket", err)
				}
				w.pause(false)
				select {
				case err := <-taken:
					if !errors.Is(err, want) {
						t.Errorf("taking the request over: %v; want %v", err, want)
					}
				case <-time.After(patience):
					t.Fatal("the task was not carried out")
				}
			}
			if len(paid) != 1 {
				t.Errorf("paid %d times; want once", len(paid))
			}
		})
	}
}

// A task with the token of a former holder is archived, and its ID stays in use. The next attempt
// has a lock and a token of its own.
func TestTheTaskOfTheNextHolderIsCarriedOut(t *testing.T) {
	w := newWorld(t)
	var latest atomic.Int64
	rule := core.Fenced("account/{account}", func(_ context.Context, fences []core.Fence) error {
		if fences[0].Token < latest.Load() {
			return core.ErrLost
		}
		return nil
	})
	ran := make(chan string, 10)
	middleware := func(next asynq.Handler) asynq.Handler {
		next = asynqlock.Guard(rule)(next)
		return asynqlock.Idempotent(w.engine)(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			err := next.ProcessTask(ctx, task)
			id, _ := asynq.GetTaskID(ctx)
			ran <- id
			return err
		}))
	}
	w.serve(middleware, func(context.Context, *asynq.Task) error { return nil })
	task := func(ctx context.Context) (*asynq.Task, error) {
		lease, err := w.locker.Lock(ctx, "account/42")
		if err != nil {
			return nil, err
		}
		defer func() { _ = lease.Release(ctx) }()
		if latest.Load() == 0 {
			latest.Store(lease.Token() + 1) // another holder came in between
		}
		return asynqlock.NewTask(lease.Context(), "charge", []byte("30 EUR"), map[string]string{"account": "42"}, once.Along{Fences: true})
	}
	for i, want := range []asynq.TaskState{asynq.TaskStateArchived, asynq.TaskStateCompleted} {
		if err := w.request([]int{http.StatusServiceUnavailable, http.StatusAccepted}[i], task); err != nil {
			t.Fatalf("enqueuing the task of a holder: %v; want another task for each token", err)
		}
		select {
		case id := <-ran:
			w.await(id, want)
		case <-time.After(patience):
			t.Fatal("the task was not carried out")
		}
	}
}

func TestATaskWithATicketHasNoOtherName(t *testing.T) {
	w := newWorld(t)
	w.pause(true)
	err := w.request(http.StatusAccepted, func(ctx context.Context) (*asynq.Task, error) {
		claim, err := idempotency.HandOver(ctx, time.Hour)
		if err != nil {
			return nil, err
		}
		for _, option := range []asynq.Option{asynq.TaskID("order-7"), asynq.Unique(time.Hour)} {
			if _, err := asynqlock.NewTask(ctx, "charge", nil, nil, once.Along{Claim: claim}, option); !errors.Is(err, core.ErrConfig) {
				t.Errorf("with %v: %v; want %v", option, err, core.ErrConfig)
			}
		}
		return asynqlock.NewTask(ctx, "charge", nil, nil, once.Along{Claim: claim}, asynq.MaxRetry(1))
	})
	if err != nil {
		t.Error(err)
	}
}
