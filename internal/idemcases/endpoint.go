package idemcases

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/adaptertest"
)

// foreign is the same request in the other protocol, for the engine.
type foreign struct {
	core.Request
	protocol string
}

func (q foreign) Protocol() string { return q.protocol }

func (q foreign) Key() (string, error) { return "k", nil }

func (q foreign) Target() (string, string, string) { return "POST", "/accounts/42/payments", "" }

func (q foreign) Origin() (string, string, string) { return "", "/accounts/42/payments", "" }

func (q foreign) Route() (string, bool) { return "", true }

func (q foreign) Header(string) []string { return []string{"alice"} }

func (q foreign) Body(int64) ([]byte, error) { return []byte(`{"amount":0}`), nil }

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
	{name: "no key is refused", run: func(f *fixture) {
		var b payments
		e := f.serve(f.engine(), b.pay)
		f.want("without", e.call(payment{}), refused(reason.KeyMissing))
		if n := b.effects.Load(); n != 0 {
			f.Errorf("%d effects", n)
		}
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
		g := adaptertest.NewGate()
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
		g := adaptertest.NewGate()
		e := f.serve(f.engine(idempotency.WaitReplay(adaptertest.Patience)), held(g, b.pay))
		first := e.start("k")
		f.wait("inside", g.Inside)
		second := e.waiter("k")
		close(g.Leave)
		f.want("first", first(), fresh(1))
		f.want("second", second(), replayed(1))
	}},
	{name: "twenty at once", run: func(f *fixture) {
		var b payments
		e := f.serve(f.engine(idempotency.WaitReplay(adaptertest.Patience)), b.pay)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if a := e.pay("k"); a.Text != "payment 1" || a.Refusal != "" {
					f.Errorf("%+v", a)
				}
			})
		}
		wg.Wait()
		if n := b.effects.Load(); n != 1 {
			f.Errorf("%d effects", n)
		}
	}},
	{name: "two principals with one key", run: func(f *fixture) {
		var b payments
		e := f.serve(f.engine(), b.pay)
		f.want("alice", e.call(payment{keys: []string{"k"}, principal: "alice"}), fresh(1))
		f.want("bob", e.call(payment{keys: []string{"k"}, principal: "bob"}), fresh(2))
		f.want("a bc", e.call(payment{keys: []string{"bc"}, principal: "a"}), fresh(3))
		f.want("ab c", e.call(payment{keys: []string{"c"}, principal: "ab"}), fresh(4))
		f.want("bob again", e.call(payment{keys: []string{"k"}, principal: "bob"}), replayed(2))
	}},
	{name: "a request without a principal is refused", run: func(f *fixture) {
		var b payments
		scope := idempotency.Scope(func(context.Context, core.Request) (string, error) { return "", nil })
		e := f.serve(f.engine(scope), b.pay)
		f.want("without a principal", e.pay("k"), refused(reason.NoPrincipal))
	}},
	{name: "two keys with one body", run: func(f *fixture) {
		var b payments
		e := f.serve(f.engine(), b.pay)
		f.want("k", e.pay("k"), fresh(1))
		f.want("l", e.pay("l"), fresh(2))
	}},
	{name: "another body or target", run: func(f *fixture) {
		var b payments
		e := f.serve(f.engine(), b.pay)
		f.want("first", e.pay("k"), fresh(1))
		f.want("amount", e.call(payment{keys: []string{"k"}, amount: 2}), refused(reason.KeyReused))
		f.want("account", e.call(payment{keys: []string{"k"}, account: "43"}), refused(reason.KeyReused))
		f.want("again", e.pay("k"), replayed(1))
	}},
	{name: "a key of the other protocol is refused", run: func(f *fixture) {
		var b payments
		engine := f.engine()
		other := endpoint.HTTP
		if f.protocol() == other {
			other = endpoint.GRPC
		}
		v := engine.Do(f.Context(), foreign{protocol: other}, endpoint.Handler{
			Run: func(context.Context, endpoint.Attempt) (endpoint.Response, bool) {
				return endpoint.Response{}, true
			},
		})
		if v.Refusal != nil || v.Replay != nil {
			f.Errorf("%+v", v)
		}
		f.want("here", f.serve(engine, b.pay).pay("k"), refused(reason.KeyReused))
	}},
	{name: "a panic releases the key", run: func(f *fixture) {
		var b payments
		e := f.serve(f.engine(), b.fails(func(context.Context) (adaptertest.Result, string) { panic("at the disco") }))
		f.want("first", e.pay("k"), reply{Result: adaptertest.Failed, Text: "at the disco"})
		f.want("retry", e.pay("k"), fresh(2))
		f.want("again", e.pay("k"), replayed(2))
	}},
	{name: "a failure releases the key", run: func(f *fixture) {
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
	{name: "a strict failure is replayed", run: func(f *fixture) {
		var b payments
		e := f.serve(f.engine(idempotency.Strict()), b.fails(says(adaptertest.Failed, "disk")))
		f.want("first", e.pay("k"), reply{Result: adaptertest.Failed, Text: "disk"})
		f.want("retry", e.pay("k"), reply{Result: adaptertest.Failed, Text: "disk", Replayed: true})
	}},
	{name: "what is declined is replayed", run: func(f *fixture) {
		var b payments
		e := f.serve(f.engine(), b.fails(says(adaptertest.Declined, "poor")))
		f.want("first", e.pay("k"), reply{Result: adaptertest.Declined, Text: "poor"})
		f.want("again", e.pay("k"), reply{Result: adaptertest.Declined, Text: "poor", Replayed: true})
	}},
	{name: "busy releases the key", run: func(f *fixture) {
		var b payments
		e := f.serve(f.engine(), b.fails(says(adaptertest.Busy, "later")))
		f.want("first", e.pay("k"), reply{Result: adaptertest.Busy, Text: "later"})
		f.want("retry", e.pay("k"), fresh(2))
	}},
	{name: "store all stores busy and failures", run: func(f *fixture) {
		var b payments
		e := f.serve(f.engine(idempotency.StoreAll()), b.fails(says(adaptertest.Busy, "later")))
		f.want("first", e.pay("k"), reply{Result: adaptertest.Busy, Text: "later"})
		f.want("again", e.pay("k"), reply{Result: adaptertest.Busy, Text: "later", Replayed: true})
	}},
	{name: "the handler's context knows its attempt", run: func(f *fixture) {
		var b payments
		var keys []string
		e := f.serve(f.engine(), func(ctx context.Context) (adaptertest.Result, string) {
			keys = append(keys, idempotency.DownstreamKey(ctx))
			if n := idempotency.Generation(ctx); n != 1 {
				f.Errorf("generation %d", n)
			}
			if _, limited := ctx.Deadline(); limited {
				f.Error("the client's deadline is the handler's")
			}
			if len(keys) == 1 {
				return adaptertest.Failed, ""
			}
			return b.pay(ctx)
		})
		e.pay("k")
		f.want("retry", e.pay("k"), fresh(1))
		if len(keys) != 2 || keys[0] != keys[1] || len(keys[0]) != 36 {
			f.Errorf("downstream keys %q", keys)
		}
	}},
	{name: "the client leaves", run: func(f *fixture) {
		var b payments
		g := adaptertest.NewGate()
		engine := f.engine()
		e := f.serve(engine, func(ctx context.Context) (adaptertest.Result, string) {
			g.Pass() // a quarter of it
			if err := ctx.Err(); err != nil {
				f.Errorf("the handler's context has ended: %v", context.Cause(ctx))
			}
			return b.pay(ctx)
		})
		waiting := f.serve(engine.With(idempotency.WaitReplay(adaptertest.Patience)), b.pay)
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
	{name: "an answer of just the limit", run: func(f *fixture) {
		var b payments
		long := strings.Repeat("x", 1<<10)
		e := f.serve(f.engine(idempotency.MaxResponse(1<<10+8)), b.fails(says(adaptertest.OK, long)))
		f.want("first", e.pay("k"), reply{Text: long})
		f.want("again", e.pay("k"), reply{Text: long, Replayed: true})
	}},
	{name: "a closing engine refuses", run: func(f *fixture) {
		var b payments
		engine := f.engine()
		e := f.serve(engine, b.pay)
		if err := engine.Close(f.Context()); err != nil {
			f.Error(err)
		}
		f.want("closing", e.pay("k"), refused(reason.Closing))
	}},
	{name: "round trips", run: func(f *fixture) {
		var b payments
		engine := f.engine()
		e := f.serve(engine, b.pay)
		marking := f.serve(engine, f.marks(b.pay))
		locking := f.serve(f.engine(idempotency.Under(core.Serialize(f.locker(), "account/{id}"))), b.pay)
		g := adaptertest.NewGate()
		slow := f.serve(engine, held(g, b.pay))
		marking.pay("warm")
		locking.pay("warm too")
		// What a busy machine delays is asked again. That adds to a measurement, and takes
		// nothing from it, so the least of a few counts. n tells one from another.
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
