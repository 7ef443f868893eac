package idemcases

import (
	"context"

	"github.com/interlock-go/interlock/core/adapter/adaptertest"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/testkit"
)

// disturbedCases are the cases of servers that fail, and of claims that are lost.
var disturbedCases = []row{
	{name: "the server forgets its clients between calls", run: func(f *fixture) {
		var b payments
		e := f.serve(f.engine(), f.marks(b.pay))
		f.Forget(f)
		f.want("first", e.pay("k"), fresh(1))
		f.Forget(f)
		f.want("again", e.pay("k"), replayed(1))
	}},
	{name: "the reply of the claim is lost", run: func(f *fixture) {
		var b payments
		e := f.serve(f.engine(), b.pay)
		f.want("warm", e.pay("w"), fresh(1))
		f.LoseClaim()
		f.want("first", e.granted("k"), fresh(2)) // a store that does not ask again has the claim given up
		f.want("again", e.pay("k"), replayed(2))
		if n := f.Lost(); n != 1 {
			f.Errorf("%d replies lost", n)
		}
	}},
	{name: "the reply of the commit is lost", run: func(f *fixture) {
		var b payments
		e := f.serve(f.engine(), b.pay)
		f.want("warm", e.pay("w"), fresh(1))
		f.LoseCommit()
		f.want("first", e.pay("k"), fresh(2))
		f.want("again", e.pay("k"), replayed(2))
		if n := f.Lost(); n != 1 {
			f.Errorf("%d replies lost", n)
		}
	}},
	{name: "the store dies under the handler", own: true, where: outside, run: func(f *fixture) {
		var b payments
		engine := f.engine()
		e := f.serve(engine, func(ctx context.Context) (adaptertest.Result, string) {
			f.Kill(f)
			return b.pay(ctx)
		})
		f.want("first", e.pay("k"), fresh(1))
		if n := engine.Pending(); n != 1 {
			f.Errorf("%d pending", n)
		}
		f.Restart(f)
		f.eventually("the answer is stored", func() bool { return engine.Pending() == 0 })
		f.want("again", e.pay("k"), replayed(1))
	}},
	{name: "the store dies under the handler's transaction", own: true, where: inside, run: func(f *fixture) {
		var b payments
		e := f.serve(f.engine(), func(ctx context.Context) (adaptertest.Result, string) {
			if b.effects.Load() == 0 {
				f.Kill(f)
			}
			return b.pay(ctx)
		})
		f.want("first", e.pay("k"), refused(reason.RolledBack))
		f.Restart(f)
		f.eventually("the claim is given up", func() bool { return e.pay("k").Refusal == "" })
		f.want("again", e.pay("k"), replayed(2))
	}},
	{name: "the store is down", own: true, run: func(f *fixture) {
		var b payments
		// An engine that closes waits for one lease, until no claim of unknown outcome can
		// turn up any more.
		e := f.serve(f.engine(idempotency.Lease(f.Pace().Lapses())), b.pay)
		f.want("warm", e.granted("w"), fresh(1))
		f.Kill(f)
		f.want("down", e.pay("k"), refused(reason.NoRecord))
		f.Restart(f)
		f.eventually("it is carried out", func() bool { return e.pay("k").Refusal == "" })
	}},
	{name: "a damaged record is refused", run: func(f *fixture) {
		var b payments
		e := f.serve(f.engine(idempotency.FailOpen()), b.pay)
		f.want("first", e.pay("k"), fresh(1))
		f.Damage(f)
		f.want("again", e.pay("k"), refused(reason.NoRecord))
	}},
	{name: "another takes over and its answer is replayed", run: func(f *fixture) {
		var b payments
		other := f.serve(f.engine(), b.pay)
		e := f.serve(f.engine(), func(context.Context) (adaptertest.Result, string) {
			f.Empty(f)
			f.want("other", other.pay("k"), fresh(1))
			return adaptertest.OK, "too late"
		})
		f.want("first", e.pay("k"), replayed(1))
		f.want("again", e.pay("k"), replayed(1))
	}},
	{name: "a process dies and another takes over", run: func(f *fixture) {
		var b payments
		g := testkit.NewGate()
		dying := f.engine()
		first := f.serve(dying, held(g, says(adaptertest.None, ""))).start("k")
		f.wait("inside", g.Inside)
		die(dying)
		f.Lapse(f)
		e := f.serve(f.engine(), func(ctx context.Context) (adaptertest.Result, string) {
			if n := idempotency.Generation(ctx); n != 2 {
				f.Errorf("generation %d", n)
			}
			return b.pay(ctx)
		})
		f.want("second", e.pay("k"), fresh(1))
		f.want("again", e.pay("k"), replayed(1))
		close(g.Leave)
		f.want("first", first(), f.lost())
	}},
	{name: "a process dies after the effect", run: func(f *fixture) {
		var b payments
		g := testkit.NewGate()
		dying := f.engine()
		first := f.serve(dying, f.marks(held(g, says(adaptertest.None, "")))).start("k")
		f.wait("inside", g.Inside)
		die(dying)
		f.Lapse(f)
		e := f.serve(f.engine(), b.pay)
		f.want("second", e.pay("k"), refused(reason.OutcomeUnknown))
		f.want("mismatch", e.call(payment{keys: []string{"k"}, amount: 2}), refused(reason.KeyReused))
		close(g.Leave)
		want := refused(reason.Lost)
		if f.ledger != nil { // the marked effect is elsewhere
			want = refused(reason.OutcomeUnknown)
		}
		f.want("first", first(), want)
		if n := b.effects.Load(); n != 0 {
			f.Errorf("%d effects", n)
		}
	}},
}
