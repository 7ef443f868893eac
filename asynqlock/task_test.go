package asynqlock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"go.opentelemetry.io/otel/trace"

	"github.com/interlock-go/interlock/asynqlock"
	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/reason"
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

// The rule of a consumer reads the tokens of a task as those of a request, and its context knows
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
