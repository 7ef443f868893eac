package idemcases

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter/adaptertest"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/testkit"
)

// endpointCases are the cases of one endpoint.
var endpointCases = []row{
	{name: "the answer is replayed", run: func(f *fixture) {
		var b payments
		e := f.serve(f.engine(), b.pay)
		f.want("first", e.pay("k"), fresh(1))
		f.want("again", e.pay("k"), replayed(1))
		other := f.serve(f.engine(), b.pay) // another process
		f.want("elsewhere", other.pay("k"), replayed(1))
		f.want("in quotes", other.pay(`"k"`), replayed(1))
	}},
	{name: "a malformed key is refused", run: func(f *fixture) {
		var b payments
		e := f.serve(f.engine(idempotency.Optional()), b.pay)
		for _, keys := range [][]string{
			{""}, {"a", "b"}, {"a", "a"}, {"a,b"}, {"a b"}, {`"a`}, {strings.Repeat("a", 256)},
		} {
			f.want(fmt.Sprintf("%q", keys), e.call(payment{keys: keys}), refused(reason.KeyMalformed))
		}
		f.want("255", e.pay(strings.Repeat("a", 255)), fresh(1))
	}},
	{name: "an optional key that is missing", run: func(f *fixture) {
		var b payments
		e := f.serve(f.engine(idempotency.Optional()), f.marks(b.pay))
		f.want("without", e.call(payment{}), fresh(1))
		f.want("without again", e.call(payment{}), fresh(2))
		f.want("with", e.pay("k"), fresh(3))
		f.want("with again", e.pay("k"), replayed(3))
	}},
	{name: "in flight", run: func(f *fixture) {
		var b payments
		g := testkit.NewGate()
		e := f.serve(f.engine(), held(g, b.pay))
		first := e.start("k")
		f.wait("inside", g.Inside)
		f.want("meanwhile", e.pay("k"), refused(reason.InFlight))
		f.want("mismatch meanwhile", e.call(payment{keys: []string{"k"}, amount: 2}), refused(reason.KeyReused))
		close(g.Leave)
		f.want("first", first(), fresh(1))
		f.want("afterwards", e.pay("k"), replayed(1))
	}},
	{name: "in flight and waited for", run: func(f *fixture) {
		var b payments
		g := testkit.NewGate()
		e := f.serve(f.engine(idempotency.WaitReplay(testkit.Patience)), held(g, b.pay))
		first := e.start("k")
		f.wait("inside", g.Inside)
		second := e.waiter("k")
		close(g.Leave)
		f.want("first", first(), fresh(1))
		f.want("second", second(), replayed(1))
	}},
	{name: "another body or target", run: func(f *fixture) {
		var b payments
		e := f.serve(f.engine(), b.pay)
		f.want("first", e.pay("k"), fresh(1))
		f.want("amount", e.call(payment{keys: []string{"k"}, amount: 2}), refused(reason.KeyReused))
		f.want("account", e.call(payment{keys: []string{"k"}, account: "43"}), refused(reason.KeyReused))
		f.want("again", e.pay("k"), replayed(1))
	}},
	{name: "a panic gives the claim up", run: func(f *fixture) {
		var b payments
		e := f.serve(f.engine(), b.fails(func(context.Context) (adaptertest.Result, string) { panic("at the disco") }))
		f.want("first", e.pay("k"), reply{Result: adaptertest.Failed, Text: "at the disco"})
		f.want("retry", e.pay("k"), fresh(2))
		f.want("again", e.pay("k"), replayed(2))
	}},
	{name: "a failure gives the claim up", run: func(f *fixture) {
		var b payments
		e := f.serve(f.engine(), b.fails(says(adaptertest.Failed, "disk")))
		f.want("first", e.pay("k"), reply{Result: adaptertest.Failed, Text: "disk"})
		f.want("retry", e.pay("k"), fresh(2))
	}},
	{name: "a marked failure is replayed", run: func(f *fixture) {
		var b payments
		e := f.serve(f.engine(), b.fails(f.marks(says(adaptertest.Failed, "disk"))))
		f.want("first", e.pay("k"), reply{Result: adaptertest.Failed, Text: "disk"})
		f.want("retry", e.pay("k"), reply{Result: adaptertest.Failed, Text: "disk", Replayed: true})
	}},
	{name: "a marked panic is replayed as a failure", run: func(f *fixture) {
		var b payments
		e := f.serve(f.engine(), b.fails(f.marks(func(context.Context) (adaptertest.Result, string) { panic("at the disco") })))
		f.want("first", e.pay("k"), reply{Result: adaptertest.Failed, Text: "at the disco"})
		if a := e.pay("k"); a.Result != adaptertest.Failed || !a.Replayed || b.effects.Load() != 1 {
			f.Errorf("retry: %+v, %d effects", a, b.effects.Load())
		}
	}},
	{name: "what is declined is replayed", run: func(f *fixture) {
		var b payments
		e := f.serve(f.engine(), b.fails(says(adaptertest.Declined, "poor")))
		f.want("first", e.pay("k"), reply{Result: adaptertest.Declined, Text: "poor"})
		f.want("again", e.pay("k"), reply{Result: adaptertest.Declined, Text: "poor", Replayed: true})
	}},
	{name: "the client leaves", run: func(f *fixture) {
		var b payments
		g := testkit.NewGate()
		engine := f.engine()
		e := f.serve(engine, func(ctx context.Context) (adaptertest.Result, string) {
			g.Pass() // a quarter of it
			if err := ctx.Err(); err != nil {
				f.Errorf("the handler's context has ended: %v", context.Cause(ctx))
			}
			return b.pay(ctx)
		})
		waiting := f.serve(engine.With(idempotency.WaitReplay(testkit.Patience)), b.pay)
		ctx, cancel := context.WithCancel(f.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if o := e.send(ctx, payment{keys: []string{"k"}}); o.OK || o.Reason != "" {
				f.Errorf("answered: %+v", o)
			}
		})
		f.wait("inside", g.Inside)
		cancel()
		wg.Wait()
		f.wait("the server knows", e.Left())
		f.want("retry meanwhile", e.pay("k"), refused(reason.InFlight))
		retry := waiting.start("k")
		close(g.Leave)
		f.want("retry", retry(), replayed(1))
	}},
	{name: "a request over the limit", slow: true, run: func(f *fixture) {
		var b payments
		e := f.serve(f.engine(), b.pay)
		f.want("over", e.call(payment{keys: []string{"k"}, padding: 1 << 20}), refused(reason.BodyTooLarge))
		f.want("under", e.call(payment{keys: []string{"k"}, padding: 1<<20 - 100}), fresh(1))
	}},
	{name: "an answer over the limit", where: outside, run: func(f *fixture) {
		var b payments
		long := strings.Repeat("x", 1<<20+1)
		e := f.serve(f.engine(), b.fails(says(adaptertest.OK, long)))
		f.want("first", e.pay("k"), reply{Text: long})
		f.want("again", e.pay("k"), refused(reason.ResponseUnavailable))
		if n := b.effects.Load(); n != 1 {
			f.Errorf("%d effects", n)
		}
	}},
	{name: "an answer over the limit is not sent ahead of the transaction", where: inside, run: func(f *fixture) {
		var b payments
		long := strings.Repeat("x", 1<<10+1)
		e := f.serve(f.engine(idempotency.MaxResponse(1<<10)), b.fails(says(adaptertest.OK, long)))
		f.want("first", e.pay("k"), refused(reason.ResponseTooLarge))
		f.want("again", e.pay("k"), fresh(2)) // the answer is short enough now
	}},
	{name: "round trips", run: func(f *fixture) {
		var b payments
		engine := f.engine()
		e := f.serve(engine, b.pay)
		marking := f.serve(engine, f.marks(b.pay))
		locking := f.serve(f.engine(idempotency.Under(core.Serialize(f.locker(), "account/{id}"))), b.pay)
		g := testkit.NewGate()
		slow := f.serve(engine, held(g, b.pay))
		marking.pay("warm")
		locking.pay("warm too")
		// A request that a busy machine delays is asked again. That adds to a measurement,
		// and takes nothing from it, so the least of a few counts. n tells one from another.
		count := func(what string, want Cost, run func(n string)) {
			f.Helper()
			var least Cost
			for n := range 5 {
				got := f.Measure(f, func() { run(strconv.Itoa(n)) })
				if n == 0 {
					least = got
				}
				least = Cost{Trips: min(least.Trips, got.Trips), Requests: min(least.Requests, got.Requests)}
				if least == want {
					return
				}
			}
			f.Errorf("%s: %+v; want %+v", what, least, want)
		}
		costs := f.Costs()
		count("fresh", costs.Fresh, func(n string) { e.pay("k" + n) })
		count("marked", costs.Marked, func(n string) { marking.pay("m" + n) })
		count("replay", costs.Replay, func(string) { e.pay("k0") })
		count("under a lock", costs.Locked, func(n string) { locking.pay("l" + n) })
		first := slow.start("s")
		f.wait("inside", g.Inside)
		count("conflict", costs.Conflict, func(string) { f.want("conflict", slow.pay("s"), refused(reason.InFlight)) })
		close(g.Leave)
		first()
	}},
	{name: "keys are not stored as they are", run: func(f *fixture) {
		var b payments
		e := f.serve(f.engine(), b.pay)
		e.call(payment{keys: []string{"secret-key"}, principal: "secret-principal"})
		if all := f.Dump(f); all == "" || strings.Contains(all, "secret") {
			f.Errorf("the store has %q", all)
		}
	}},
}
