package asynqlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/interlock-go/interlock/asynqlock"
	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/admin"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/once"
)

// A server that is shut down gives the tasks back that it does not wait for, and their
// handlers go on.
func TestATaskThatIsGivenBackWhileItRunsIsCarriedOutOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var runs atomic.Int32
	running, finish := make(chan struct{}), make(chan struct{})
	charge := func(ctx context.Context, _ *asynq.Task) error {
		if runs.Add(1) == 1 {
			close(running)
		}
		<-finish
		return context.Cause(ctx)
	}
	first := w.serve(asynqlock.Idempotent(w.engine), charge, func(c *asynq.Config) { c.ShutdownTimeout = 10 * time.Millisecond })
	w.enqueue("t1", "pay 1", nil)
	<-running
	first.shutdown()
	second := w.serve(asynqlock.Idempotent(w.engine), charge)
	eventually(t, func() error {
		for _, err := range second.errors() {
			if errors.Is(err, idempotency.ErrInFlight) {
				return nil
			}
		}
		return errors.New("the second server was not refused")
	})
	close(finish)
	info := w.await("t1", asynq.TaskStateCompleted)
	if runs.Load() != 1 || info.Retried != 0 {
		t.Errorf("%d runs, %d retries counted; want 1 and 0", runs.Load(), info.Retried)
	}
}

func TestWhatBecomesOfATask(t *testing.T) {
	t.Parallel()
	broken := errors.New("the bank is closed")
	marked := func(ctx context.Context) error {
		if err := idempotency.MarkEffect(ctx); err != nil {
			return err
		}
		return broken
	}
	returns := func(err error) func(context.Context) error { return func(context.Context) error { return err } }
	for name, c := range map[string]struct {
		first   func(ctx context.Context) error // of the first run; later ones succeed
		state   asynq.TaskState
		runs    int32
		retried int
		lastErr string
	}{
		"done":     {first: returns(nil), state: asynq.TaskStateCompleted, runs: 1},
		"an error": {first: returns(broken), state: asynq.TaskStateCompleted, runs: 2, retried: 1, lastErr: "the bank is closed"},
		"a panic":  {first: func(context.Context) error { panic("broken") }, state: asynq.TaskStateCompleted, runs: 2, retried: 1, lastErr: "broken"},
		"final":    {first: returns(once.Final(broken)), state: asynq.TaskStateArchived, runs: 1, lastErr: "the bank is closed"},
		"skipped":  {first: returns(errors.Join(broken, asynq.SkipRetry)), state: asynq.TaskStateArchived, runs: 1, lastErr: "the bank is closed"},
		"marked":   {first: marked, state: asynq.TaskStateArchived, runs: 1, retried: 1, lastErr: "the bank is closed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			var runs atomic.Int32
			w.serve(asynqlock.Idempotent(w.engine), func(ctx context.Context, task *asynq.Task) error {
				if string(task.Payload()) != "pay 1" {
					t.Errorf("the handler got %q", task.Payload())
				}
				if runs.Add(1) == 1 {
					return c.first(ctx)
				}
				return nil
			})
			w.enqueue("t1", "pay 1", nil)
			info := w.await("t1", c.state)
			if runs.Load() != c.runs || info.Retried != c.retried || !strings.Contains(info.LastErr, c.lastErr) {
				t.Errorf("%d runs, %d retries, last error %q; want %d, %d, %q", runs.Load(), info.Retried, info.LastErr, c.runs, c.retried, c.lastErr)
			}
			w.again("t1", "pay 1")
			if info := w.await("t1", c.state); runs.Load() != c.runs || c.state == asynq.TaskStateArchived && !strings.Contains(info.LastErr, c.lastErr) {
				t.Errorf("the same task again: %d runs, last error %q", runs.Load(), info.LastErr)
			}
			w.again("t1", "pay 2")
			if info := w.await("t1", asynq.TaskStateArchived); runs.Load() != c.runs || !strings.Contains(info.LastErr, "idempotency-key-reused") {
				t.Errorf("another task with its ID: %d runs, last error %q", runs.Load(), info.LastErr)
			}
		})
	}
}

func TestATaskThatIsRevoked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var runs atomic.Int32
	s := w.serve(asynqlock.Idempotent(w.engine), func(context.Context, *asynq.Task) error {
		runs.Add(1)
		return asynq.RevokeTask
	})
	for n := range 2 {
		w.again("t1", "pay 1")
		eventually(t, func() error {
			if _, err := w.inspector.GetTaskInfo("default", "t1"); !errors.Is(err, asynq.ErrTaskNotFound) {
				return errors.New("the task is still there")
			}
			return nil
		})
		if told := s.errors(); len(told) != n+1 || !errors.Is(told[n], asynq.RevokeTask) || runs.Load() != 1 {
			t.Errorf("%d runs, errors %q", runs.Load(), told)
		}
	}
}

func TestATaskWhoseOutcomeIsUnknownIsArchivedUntilItIsResolved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one := asynqlock.Key(func(context.Context, *asynq.Task) string { return "charge/order-7" })
	const lease = time.Hour
	dying, err := idempotency.New(w.store, idempotency.Global(), idempotency.Lease(lease))
	if err != nil {
		t.Fatal(err)
	}
	task := asynq.NewTask("charge", []byte("pay 1"))
	err = asynqlock.Idempotent(dying, one)(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		if err := idempotency.MarkEffect(ctx); err != nil {
			t.Error(err)
		}
		now, cancel := context.WithCancel(context.Background())
		cancel()
		_ = dying.Close(now) // ends ctx
		<-ctx.Done()
		return context.Cause(ctx)
	})).ProcessTask(t.Context(), task)
	if !errors.Is(err, core.ErrClosed) || errors.Is(err, asynq.SkipRetry) {
		t.Errorf("the engine that died: %v", err)
	}
	if d := asynqlock.RetryDelay(nil)(0, err, task); d != lease || asynqlock.IsFailure(err) {
		t.Errorf("retried after %v, a failure %v; want the lease", d, asynqlock.IsFailure(err))
	}
	w.store.LapseClaims()
	var runs atomic.Int32
	w.serve(asynqlock.Idempotent(w.engine, one), func(context.Context, *asynq.Task) error {
		runs.Add(1)
		return nil
	})
	w.enqueue("t1", "pay 1", nil)
	if info := w.await("t1", asynq.TaskStateArchived); !strings.Contains(info.LastErr, "idempotency-outcome-unknown") {
		t.Errorf("last error %q", info.LastErr)
	}
	found := admin.CarriedOut(endpoint.Func, endpoint.Response{})
	if err := w.engine.Resolve(t.Context(), once.ScopeOf(""), "charge/order-7", found); err != nil {
		t.Fatal(err)
	}
	if err := w.inspector.RunTask("default", "t1"); err != nil {
		t.Fatal(err)
	}
	w.await("t1", asynq.TaskStateCompleted)
	if runs.Load() != 0 {
		t.Errorf("it ran %d times", runs.Load())
	}
}

// The second task is refused while the first runs, and carried out after it.
func TestTasksOfOneAccountRunOneAfterTheOther(t *testing.T) {
	t.Parallel()
	for name, wrap := range map[string]func(w *world, rule *core.Guard) asynq.MiddlewareFunc{
		"a rule alone": func(_ *world, rule *core.Guard) asynq.MiddlewareFunc { return asynqlock.Guard(rule) },
		"with records": func(w *world, rule *core.Guard) asynq.MiddlewareFunc {
			return asynqlock.Idempotent(w.engine.With(idempotency.Under(rule)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			rule := core.Serialize(w.locker, "account/{account}", core.Wait(0))
			var inside, runs atomic.Int32
			running, finish := make(chan struct{}), make(chan struct{})
			charge := func(ctx context.Context, task *asynq.Task) error {
				account := task.Headers()["account"]
				if key := core.LeaseFromContext(ctx).Key(); key != "account/"+account {
					t.Errorf("a task of %s runs under %q", account, key)
				}
				if account == "other" {
					return nil
				}
				if inside.Add(1) != 1 {
					t.Error("two tasks of one account run at once")
				}
				defer inside.Add(-1)
				if runs.Add(1) == 1 {
					close(running)
					<-finish
				}
				return nil
			}
			first := w.serve(wrap(w, rule), charge)
			w.enqueue("a1", "", map[string]string{"account": "42"})
			<-running
			second := w.serve(wrap(w, rule), charge)
			w.enqueue("a2", "", map[string]string{"account": "42"})
			w.enqueue("b1", "", map[string]string{"account": "other"})
			w.await("b1", asynq.TaskStateCompleted)
			eventually(t, func() error {
				refused := append(first.errors(), second.errors()...)
				if len(refused) == 0 {
					return errors.New("the second task was not refused")
				}
				for _, err := range refused {
					if d := asynqlock.RetryDelay(nil)(0, err, nil); !errors.Is(err, core.ErrHeld) || d != time.Second {
						t.Errorf("refused with %v, retried after %v", err, d)
					}
				}
				return nil
			})
			close(finish)
			for _, id := range []string{"a1", "a2"} {
				if info := w.await(id, asynq.TaskStateCompleted); info.Retried != 0 {
					t.Errorf("task %s: %d retries were counted; a wait is none", id, info.Retried)
				}
			}
			if runs.Load() != 2 {
				t.Errorf("%d runs, want 2", runs.Load())
			}
			w.enqueue("none", "", nil)
			if info := w.await("none", asynq.TaskStateArchived); !strings.Contains(info.LastErr, "bad-key") {
				t.Errorf("a task without the header: %q", info.LastErr)
			}
		})
	}
}

func TestATaskOutsideOfAServerNeedsAKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := asynqlock.Idempotent(w.engine, nil, asynqlock.Key(nil))(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		t.Error("it ran")
		return nil
	}))
	if err := h.ProcessTask(t.Context(), asynq.NewTask("charge", nil)); !errors.Is(err, asynq.SkipRetry) || !errors.Is(err, core.ErrKey) {
		t.Errorf("%v", err)
	}
	for name, f := range map[string]func(){
		"engine": func() { asynqlock.Idempotent(nil) },
		"rule":   func() { asynqlock.Guard(nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a nil %s was accepted", name)
				}
			}()
			f()
		}()
	}
}

func TestAnArchivedTaskRunsAgainWhenItsRecordIsForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one := asynqlock.Key(func(context.Context, *asynq.Task) string { return "charge/t1" })
	runs := 0
	h := asynqlock.Idempotent(w.engine, one)(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		if runs++; runs == 1 {
			return fmt.Errorf("no such account: %w", asynq.SkipRetry)
		}
		return nil
	}))
	task := asynq.NewTask("charge", nil)
	for range 2 { // the second is the operator's
		if err := h.ProcessTask(t.Context(), task); !errors.Is(err, asynq.SkipRetry) || runs != 1 {
			t.Errorf("%v after %d runs; want the stored error", err, runs)
		}
	}
	if err := w.engine.Forget(t.Context(), once.ScopeOf(""), "charge/t1"); err != nil {
		t.Fatal(err)
	}
	if err := h.ProcessTask(t.Context(), task); err != nil || runs != 2 {
		t.Errorf("%v after %d runs; want a second run", err, runs)
	}
}

func TestOtherErrorsFollowTheApplication(t *testing.T) {
	t.Parallel()
	delay := asynqlock.RetryDelay(func(n int, _ error, _ *asynq.Task) time.Duration { return time.Duration(n) * time.Hour })
	broken := errors.New("broken")
	if d := delay(3, broken, nil); d != 3*time.Hour || !asynqlock.IsFailure(broken) || asynqlock.IsFailure(nil) {
		t.Errorf("an error is retried after %v, a failure %v", d, asynqlock.IsFailure(broken))
	}
	if d := asynqlock.RetryDelay(nil)(0, broken, nil); d < 15*time.Second {
		t.Errorf("Asynq's own delay is %v", d)
	}
}

func TestTheOptionsOfACall(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	canceled := make(chan error, 2)
	var runs atomic.Int32
	w.serve(asynqlock.Idempotent(w.engine, asynqlock.With(once.Cancelable(), once.Scoped("acme"))),
		func(ctx context.Context, _ *asynq.Task) error {
			if runs.Add(1) > 1 {
				return nil // Asynq retries a canceled task
			}
			_, limited := ctx.Deadline()
			if !limited {
				t.Error("a task has no deadline")
			}
			canceled <- nil
			<-ctx.Done()
			canceled <- ctx.Err()
			return ctx.Err()
		})
	w.enqueue("t1", "", nil)
	if err := <-canceled; err != nil {
		t.Error(err)
	}
	var err error
	for ended := false; !ended; { // the server may not listen yet
		if err := w.inspector.CancelProcessing("t1"); err != nil {
			t.Fatal(err)
		}
		select {
		case err = <-canceled:
			ended = true
		case <-time.After(200 * time.Millisecond):
		}
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the handler's context: %v", err)
	}
	w.await("t1", asynq.TaskStateCompleted)
	if n := runs.Load(); n != 2 {
		t.Errorf("%d runs, want one more than the canceled one", n)
	}
}
