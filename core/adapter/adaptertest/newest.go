package adaptertest

import (
	"context"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/testkit"
)

// comes has a newer caller come for the lock of account 1, and returns when it has the lock.
func (w *world) comes(locker *core.Locker) (gone <-chan struct{}) {
	c := make(chan struct{})
	go func() {
		defer close(c)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(w.Context()), testkit.Patience)
		defer cancel()
		lease, err := locker.Lock(ctx, "account/1", core.Newest())
		if err != nil {
			w.Errorf("the newer caller: %v", err)
			return
		}
		_ = lease.Release(ctx)
	}()
	return c
}

// superseded makes the behaviour of a handler that ends in some way after its request was
// superseded.
func superseded(end func(*Call) error, want func(w *world, o Outcome)) func(w *world) {
	return func(w *world) {
		locker := w.locker()
		var gone <-chan struct{}
		s, client := w.serve(func(ctx context.Context, call *Call) error {
			gone = w.comes(locker)
			w.wantEnd(ctx, core.ErrSuperseded)
			if err := core.LeaseFromContext(ctx).Check(context.WithoutCancel(ctx)); err != nil {
				w.Errorf("the lock of a request that is superseded: %v", err)
			}
			return end(call)
		}, core.Serialize(locker, "account/{id}", core.Newest(), core.OnLost(func(l core.Loss) { w.Errorf("lost: %+v", l) })))
		want(w, client.Call(w.Context(), account("1")))
		if v := s.Visit(w); v.Panic != nil || !v.Restored {
			w.Errorf("%+v", v)
		}
		testkit.Receive(w, gone, "the newer caller")
		w.wantFree("account/1")
	}
}

// A request that waits for a lock makes room for a newer one.
func (w *world) supersededWaiter() {
	locker := w.locker()
	leave := w.hold(locker, "account/1")
	s, client := w.serve(keysOf, core.Serialize(locker, "account/{id}", core.Newest(), core.Wait(time.Minute)))
	first := async(w.Context(), client, account("1"))
	testkit.QueuedBefore(w, locker, 1, first)
	second := async(w.Context(), client, account("1"))
	w.wantRefused(testkit.Receive(w, first, "the answer to the older request"), reason.Superseded, false)
	leave()
	w.wantOK(testkit.Receive(w, second, "the answer to the newer request"), "account/1")
	s.Visit(w)
}

// A request is refused while another one waits.
func (w *world) oneWaiter() {
	locker := w.locker()
	leave := w.hold(locker, "account/1")
	s, client := w.serve(keysOf, core.Serialize(locker, "account/{id}", core.OneWaiter(), core.Wait(time.Minute)))
	first := async(w.Context(), client, account("1"))
	testkit.QueuedBefore(w, locker, 1, first)
	w.wantRefused(client.Call(w.Context(), account("1")), reason.QueueFull, false)
	leave()
	w.wantOK(testkit.Receive(w, first, "the answer to the request that waits"), "account/1")
	s.Visit(w)
}
