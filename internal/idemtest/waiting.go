package idemtest

import (
	"context"
	"slices"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
)

// expiring is a context whose deadline is over when the test says so.
type expiring struct {
	context.Context
	over <-chan struct{}
}

func (c expiring) Done() <-chan struct{} { return c.over }

func (c expiring) Err() error {
	select {
	case <-c.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// channels are those that have subscribers.
func (f *fixture) channels() []string {
	f.Helper()
	names, err := f.rdb.PubSubChannels(f.Context(), "*").Result()
	if err != nil {
		f.Error(err)
	}
	return names
}

// waiter starts a duplicate of a request in flight, and returns once it waits: it
// has been told that the request is in flight, and has subscribed to its end.
func (e *endpoint) waiter(key string) (answer func() Answer) {
	e.f.Helper()
	before := e.f.channels()
	answer = e.start(key)
	e.f.eventually("the duplicate waits", func() bool {
		return slices.ContainsFunc(e.f.channels(), func(name string) bool { return !slices.Contains(before, name) })
	})
	return answer
}

// waiting are the cases of duplicates that wait for the answer (WaitReplay).
var waiting = []row{
	{name: "a duplicate that waits is told of the request in flight at its own deadline", run: func(f *fixture) {
		for name, opts := range map[string][]idempotency.Option{"default": nil, "fails-open": {idempotency.FailOpen()}} {
			var b bank
			g, over := newGate(), make(chan struct{})
			engine := f.engine(append(opts, idempotency.WaitReplay(Patience))...)
			first := f.serve(engine, g.held(b.pay)).start(name)
			f.wait("inside", g.inside)
			limited := f.serveStacked(&Endpoint{
				Engine: engine, Handle: b.pay,
				Context: func(ctx context.Context) context.Context { return expiring{ctx, over} },
			})
			second := limited.waiter(name)
			close(over)
			f.want("second, "+name, second(), refused(core.ReasonInFlight))
			close(g.leave)
			f.want("first, "+name, first(), fresh(1))
		}
	}},
	{name: "duplicates that wait are bounded", run: func(f *fixture) {
		var b bank
		g := newGate()
		e := f.serve(f.engine(idempotency.WaitReplay(Patience), idempotency.MaxWaiters(1)), g.held(b.pay))
		first := e.start("k")
		f.wait("inside", g.inside)
		second := e.waiter("k")
		for range 3 {
			f.want("one more", e.pay("k"), refused(core.ReasonInFlight))
		}
		close(g.leave)
		f.want("first", first(), fresh(1))
		f.want("second", second(), replayed(1))
	}},
	{name: "the store hangs while a duplicate waits", own: true, run: func(f *fixture) {
		var b bank
		g := newGate()
		// The duplicate asks again at the end of the lease that it was told of.
		engine := f.engine(idempotency.WaitReplay(Patience), idempotency.Lease(2*time.Second), idempotency.FailOpen())
		e := f.serve(engine, g.held(b.pay))
		first := e.start("k")
		f.wait("inside", g.inside)
		second := e.waiter("k")
		f.srv.Kill()
		f.want("second", second(), refused(core.ReasonInFlight))
		f.srv.Restart(f)
		close(g.leave)
		first()
		if n := b.effects.Load(); n != 1 {
			f.Errorf("%d effects", n)
		}
	}},
}
