package asynqlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/asynqlock"
	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds events that take no time on an idle machine.
const patience = 30 * time.Second

// world is a Redis with queues, and a store with locks and records.
type world struct {
	*testing.T
	addr      asynq.RedisClientOpt
	client    *asynq.Client
	inspector *asynq.Inspector
	store     *memstore.Store
	locker    *core.Locker
	engine    *idempotency.Engine
}

func newWorld(t *testing.T) *world {
	t.Helper()
	srv := miniredis.RunT(t)
	srv.ClockTTL(true)
	w := &world{T: t, addr: asynq.RedisClientOpt{Addr: srv.Addr()}, store: memstore.New()}
	var err error
	if w.locker, err = core.New(w.store); err != nil {
		t.Fatal(err)
	}
	if w.engine, err = idempotency.New(w.store, idempotency.Global()); err != nil {
		t.Fatal(err)
	}
	w.client, w.inspector = asynq.NewClient(w.addr), asynq.NewInspector(w.addr)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		err := errors.Join(w.engine.Close(ctx), w.locker.Close(ctx), w.client.Close(), w.inspector.Close())
		if err != nil {
			t.Errorf("closing: %v", err)
		}
	})
	return w
}

// eventually waits until ok returns nil.
func eventually(t *testing.T, ok func() error) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// server is the equipment of a process. It ends with the test, if not before.
type server struct {
	*asynq.Server
	once sync.Once

	mu      sync.Mutex
	refused []error // errors of the middleware, in order
}

// serve starts a server with one kind of task.
func (w *world) serve(wrap asynq.MiddlewareFunc, handle asynq.HandlerFunc, change ...func(*asynq.Config)) *server {
	w.Helper()
	s := &server{}
	config := asynq.Config{
		Concurrency: 4, TaskCheckInterval: 20 * time.Millisecond, DelayedTaskCheckInterval: 50 * time.Millisecond,
		RetryDelayFunc: asynqlock.RetryDelay(func(int, error, *asynq.Task) time.Duration { return 0 }),
		IsFailure:      asynqlock.IsFailure,
		LogLevel:       asynq.FatalLevel, // errors are on purpose
		ErrorHandler: asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.refused = append(s.refused, err)
		}),
	}
	for _, f := range change {
		f(&config)
	}
	mux := asynq.NewServeMux()
	mux.Use(wrap)
	mux.Handle("charge", handle)
	s.Server = asynq.NewServer(w.addr, config)
	if err := s.Start(mux); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(s.shutdown)
	return s
}

func (s *server) shutdown() { s.once.Do(s.Shutdown) }

// errors returns the errors that the middleware returned to Asynq.
func (s *server) errors() []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]error(nil), s.refused...)
}

// enqueue enqueues a task with an ID that is kept when it is done.
func (w *world) enqueue(id, payload string, headers map[string]string) {
	w.Helper()
	task := asynq.NewTaskWithHeaders("charge", []byte(payload), headers)
	if _, err := w.client.Enqueue(task, asynq.TaskID(id), asynq.Retention(time.Hour), asynq.MaxRetry(5)); err != nil {
		w.Fatal(err)
	}
}

// await waits for a state of a task.
func (w *world) await(id string, state asynq.TaskState) *asynq.TaskInfo {
	w.Helper()
	var info *asynq.TaskInfo
	eventually(w.T, func() (err error) {
		if info, err = w.inspector.GetTaskInfo("default", id); err == nil && info.State != state {
			err = fmt.Errorf("the task is %v; want %v (%s)", info.State, state, info.LastErr)
		}
		return err
	})
	return info
}

// again enqueues the task once more, as a producer does that has no answer to the first.
func (w *world) again(id, payload string) {
	w.Helper()
	err := w.inspector.DeleteTask("default", id)
	if err != nil && !errors.Is(err, asynq.ErrTaskNotFound) && !errors.Is(err, asynq.ErrQueueNotFound) {
		w.Fatal(err)
	}
	w.enqueue(id, payload, nil)
}

// pause keeps the servers from tasks, or not.
func (w *world) pause(on bool) {
	w.Helper()
	err := w.inspector.UnpauseQueue("default")
	if on {
		err = w.inspector.PauseQueue("default")
	}
	if err != nil {
		w.Fatal(err)
	}
}
