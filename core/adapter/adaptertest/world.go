package adaptertest

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/testkit"
)

// world is the environment of one behaviour of one adapter.
type world struct {
	*testing.T
	Framework
	store *memstore.Store
}

// locker returns a locker, each as of another process.
func (w *world) locker(opts ...core.LockerOption) *core.Locker {
	w.Helper()
	return testkit.LockerOn(w, w.store, opts...)
}

// serve serves a handler under guards, with the parameter id.
func (w *world) serve(handler func(context.Context, *Call) error, guards ...*core.Guard) (*Service, Client) {
	w.Helper()
	s := &Service{Layers: locks(guards...), Handler: handler}
	return s, w.Start(w, s)
}

// account is a request for an account.
func account(id string) Request {
	return Request{Values: map[string]string{"id": id}}
}

// say is a handler that answers.
func say(text string) func(context.Context, *Call) error {
	return func(_ context.Context, call *Call) error { return call.Send(text) }
}

// flush sends the output of an HTTP handler so far.
func flush(call *Call) error {
	call.W.(http.Flusher).Flush()
	return nil
}

// keysOf answers with the keys of its lease.
func keysOf(ctx context.Context, call *Call) error {
	lease := core.LeaseFromContext(ctx)
	if lease == nil {
		return call.Send("no lease")
	}
	return call.Send(strings.Join(lease.Keys(), " "))
}

// hold takes a lock as a batch job would, for the rest of the test or until the
// returned function is called.
func (w *world) hold(locker *core.Locker, key string) (leave func()) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), testkit.Patience)
	defer cancel()
	lease, err := locker.Lock(ctx, key)
	if err != nil {
		w.Fatal(err)
	}
	leave = func() { _ = lease.Release(context.Background()) }
	w.Cleanup(leave)
	return leave
}

// async makes a call on a new goroutine.
func async(ctx context.Context, client Client, req Request) <-chan Outcome {
	c := make(chan Outcome, 1)
	go func() { c <- client.Call(ctx, req) }()
	return c
}

// wantFree fails the test if the store still has the lock of a key.
func (w *world) wantFree(key string) {
	w.Helper()
	if !testkit.Free(w.store, key) {
		w.Errorf("%s: the lock is still there", key)
	}
}

// wantOK fails the test unless the call was answered by its handler.
func (w *world) wantOK(o Outcome, text string) {
	w.Helper()
	if !o.OK || o.Text != text {
		w.Errorf("%+v; want %q", o, text)
	}
}

// wantRefused holds an outcome against the table.
func (w *world) wantRefused(o Outcome, reason reason.Reason, ran bool) {
	w.Helper()
	w.WantRefused(w, o, reason, ran)
}

// never is a handler that must not run.
func (w *world) never(context.Context, *Call) error {
	w.Error("the handler ran")
	return nil
}

// wantEnd waits until a handler's context ends, as it must with its lease.
func (w *world) wantEnd(ctx context.Context, want error) {
	w.Helper()
	_ = testkit.Meet[struct{}](ctx, nil)
	if cause := context.Cause(ctx); !errors.Is(cause, want) {
		w.Errorf("cause %v; want %v", cause, want)
	}
}

// lose takes the lease away from the handler.
func (w *world) lose(ctx context.Context) {
	lease := core.LeaseFromContext(ctx)
	if lease == nil {
		w.Error("the handler has no lease")
		return
	}
	w.loseUnnoticed(lease.Key())
	if err := lease.Check(ctx); !errors.Is(err, core.ErrLost) { // asks now, as the watchdog does later
		w.Errorf("check: %v; want ErrLost", err)
	}
	w.wantEnd(ctx, core.ErrLost)
}

// loseUnnoticed ends the lock of a key in the store. Its holder is not told.
func (w *world) loseUnnoticed(key string) {
	w.Helper()
	if !w.store.Expire(key) {
		w.Errorf("%s: there is no lock to lose", key)
	}
}
