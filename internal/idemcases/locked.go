package idemcases

import (
	"context"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter/adaptertest"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/reason"
)

// lockedCases are the cases of an endpoint under a lock.
var lockedCases = []row{
	{name: "under a lock", run: func(f *fixture) {
		var b payments
		locker := f.locker()
		engine := f.engine(idempotency.Under(core.Serialize(locker, "account/{id}", core.Wait(0))))
		e := f.serve(engine, func(ctx context.Context) (adaptertest.Result, string) {
			if lease := core.LeaseFromContext(ctx); lease == nil || lease.Key() != "account/42" {
				f.Error("the handler runs without its lock")
			}
			return b.pay(ctx)
		})
		lease, err := locker.Lock(f.Context(), "account/42")
		if err != nil {
			f.Fatal(err)
		}
		f.want("locked", e.pay("k"), refused(reason.Held))
		if n := f.Count(f, "interlock"); n != 0 {
			f.Errorf("%d records", n)
		}
		if err := lease.Release(f.Context()); err != nil {
			f.Error(err)
		}
		f.want("free", e.pay("k"), fresh(1))
		if lease, err = locker.Lock(f.Context(), "account/42"); err != nil {
			f.Fatal(err)
		}
		f.want("a replay takes no lock", e.pay("k"), replayed(1))
		if err := lease.Release(f.Context()); err != nil {
			f.Error(err)
		}
	}},
	{name: "a lock that checks answers was lost", run: func(f *fixture) {
		runs := 0
		engine := f.engine(idempotency.Under(core.Serialize(f.locker(), "account/{id}", core.CheckAnswer())))
		e := f.serve(engine, func(context.Context) (adaptertest.Result, string) {
			if runs++; runs == 1 {
				f.loseLock()
			}
			return adaptertest.OK, "done, so it thinks"
		})
		f.want("first", e.pay("k"), f.lost())
		f.want("its outcome is not stored", e.pay("k"), f.afterLoss(reply{Text: "done, so it thinks"}))
	}},
}
