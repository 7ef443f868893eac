package adaptertest

import (
	"context"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/testkit"
)

// heldBy is a request for an account that is sent with the locks of a context.
func heldBy(ctx context.Context, id string) Request {
	req := account(id)
	req.Header = append(req.Header, [2]string{core.HeldHeader, core.HeldFor(ctx)})
	return req
}

// callerHolds has a caller with the lock that the service wants, and a caller with another lock.
func (w *world) callerHolds() {
	caller, locker := w.locker(), w.locker()
	lease, err := caller.Lock(w.Context(), "account/1")
	if err != nil {
		w.Fatal(err)
	}
	s, client := w.serve(keysOf, core.Serialize(locker, "account/{id}", core.Wait(time.Hour)))
	w.wantRefused(client.Call(w.Context(), heldBy(lease.Context(), "1")), reason.HeldByCaller, false)
	w.wantOK(client.Call(w.Context(), heldBy(lease.Context(), "2")), "account/2")
	s.Visit(w)
	other, err := caller.Lock(w.Context(), "account/3")
	if err != nil {
		w.Fatal(err)
	}
	waits := async(w.Context(), client, heldBy(other.Context(), "1"))
	testkit.QueuedBefore(w, locker, 1, waits)
	for _, lease := range []*core.Lease{lease, other} {
		if err := lease.Release(w.Context()); err != nil {
			w.Fatal(err)
		}
	}
	w.wantOK(testkit.Receive(w, waits, "the answer to the request that waits for another caller's lock"), "account/1")
	s.Visit(w)
}

// between starts a service for each rule that passes the locks of callers on, and has their clients called.
func (w *world) between(handler func(context.Context, *Call) error, call func(rule string, client Client)) {
	claim := func(context.Context, []core.Fence) error { return nil }
	layers := map[string]Layer{
		"locks":  {Lock: core.Serialize(w.locker(), "order/{id}")},
		"fences": {Lock: core.Fenced("order/{id}", claim, core.AllowUnfenced())},
		"relays": {Lock: core.Relay()},
	}
	if w.Idempotent {
		layers["is idempotent"] = Layer{Idempotent: testkit.Engine(w)}
	}
	for rule, layer := range layers {
		call(rule, w.Start(w, &Service{Layers: []Layer{layer}, Handler: handler}))
	}
}

// keyed is a request with an idempotency key that is sent with the locks of a context.
func keyed(ctx context.Context, id string) Request {
	req := heldBy(ctx, id)
	req.Header = append(req.Header, [2]string{"idempotency-key", "k" + id})
	return req
}

// passesOn has three services: a caller with a lock, a service in between, and a last service that
// wants the lock.
func (w *world) passesOn() {
	lease, err := w.locker().Lock(w.Context(), "account/1")
	if err != nil {
		w.Fatal(err)
	}
	_, last := w.serve(w.never, core.Serialize(w.locker(), "account/{id}", core.Wait(testkit.Patience)))
	w.between(func(ctx context.Context, call *Call) error {
		return call.Send(last.Call(w.Context(), heldBy(ctx, "1")).Reason)
	}, func(rule string, client Client) {
		if o := client.Call(w.Context(), keyed(lease.Context(), "1")); o.Text != string(reason.HeldByCaller) {
			w.Errorf("the service in between %s: %+v; want %q from the last one", rule, o, reason.HeldByCaller)
		}
	})
	if err := lease.Release(w.Context()); err != nil {
		w.Fatal(err)
	}
}

// fails has a service in between that fails because a further one wants the lock of its caller. Without a mark
// the client of the caller would repeat the request under the lock.
func (w *world) fails() {
	lease, err := w.locker().Lock(w.Context(), "account/1")
	if err != nil {
		w.Fatal(err)
	}
	w.between(func(ctx context.Context, call *Call) error {
		adapter.NoteStuck(ctx) // as the clients of this module do
		return call.Answer(Failed, "failed")
	}, func(rule string, client Client) {
		if o := client.Call(w.Context(), keyed(lease.Context(), "1")); o.OK || o.Reason != string(reason.HeldByCaller) {
			w.Errorf("the service in between %s: %+v; want a failure with the reason %q", rule, o, reason.HeldByCaller)
		}
		if o := client.Call(w.Context(), keyed(w.Context(), "2")); o.OK || o.Reason != "" {
			w.Errorf("the service in between %s, and its caller holds no lock: %+v; want a failure without a reason", rule, o)
		}
	})
	if err := lease.Release(w.Context()); err != nil {
		w.Fatal(err)
	}
}

// relays has a service in between without a rule for the key.
func (w *world) relays() {
	_, client := w.serve(func(ctx context.Context, call *Call) error {
		field, err := core.FencesFor(ctx)
		if err != nil {
			return err
		}
		return call.Send(field)
	}, core.Relay())
	w.wantOK(client.Call(w.Context(), withTokens("1", "account/1=5, account/2=7")), "account/1=5, account/2=7")
	w.wantRefused(client.Call(w.Context(), withTokens("1", "account/1")), reason.TokenMalformed, false)
}

// handsOver has a handler that gives its lock to a worker.
func (w *world) handsOver() {
	locker, worker := w.locker(), w.locker()
	var ticket core.Ticket
	_, client := w.serve(func(ctx context.Context, call *Call) (err error) {
		if ticket, err = core.HandOver(ctx, time.Hour); err != nil {
			return err
		}
		return call.Send("handed over")
	}, core.Serialize(locker, "account/{id}", core.Wait(0)))
	w.wantOK(client.Call(w.Context(), account("1")), "handed over")
	w.wantRefused(client.Call(w.Context(), account("1")), reason.Held, false)
	lease, err := worker.TakeOver(w.Context(), ticket)
	if err != nil {
		w.Fatal(err)
	}
	w.wantRefused(client.Call(w.Context(), account("1")), reason.Held, false)
	if err := lease.Release(w.Context()); err != nil {
		w.Fatal(err)
	}
	w.wantFree("account/1")
}
