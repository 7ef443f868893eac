package idemcases

import (
	"context"
	"errors"
	"fmt"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter/adaptertest"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/reason"
)

// heldLock holds the lock of account 42 until free is called.
func (f *fixture) heldLock(locker *core.Locker) (free func()) {
	f.Helper()
	lease, err := locker.Lock(f.Context(), "account/42")
	if err != nil {
		f.Fatal(err)
	}
	return func() {
		f.Helper()
		if err := lease.Release(f.Context()); err != nil {
			f.Error(err)
		}
	}
}

// loses is a handler that loses its lock of account 42 once, and then pays.
func (f *fixture) loses(b *payments) handler {
	return func(ctx context.Context) (adaptertest.Result, string) {
		if n := b.effects.Add(1); n > 1 {
			return adaptertest.OK, fmt.Sprint("payment ", n)
		}
		f.loseLock()
		// The handler asks now, as the watchdog does later.
		if err := core.LeaseFromContext(ctx).Check(ctx); !errors.Is(err, core.ErrLost) {
			f.Errorf("check: %v; want ErrLost", err)
		}
		f.wait("the loss is noticed", ctx.Done())
		return adaptertest.None, ""
	}
}

// stackedCases are the cases of middleware that is there more than once.
var stackedCases = []row{
	{name: "the refusal of a lock as a middleware of its own is not stored", run: func(f *fixture) {
		for name, opts := range map[string][]idempotency.Option{
			"default": nil, "strict": {idempotency.Strict()}, "store-all": {idempotency.StoreAll()},
		} {
			var b payments
			locker := f.locker()
			e := f.serve(f.engine(opts...), b.pay, adaptertest.Layer{Lock: core.Serialize(locker, "account/{id}", core.Wait(0))})
			free := f.heldLock(locker)
			f.want("locked, "+name, e.pay(name), refused(reason.Held))
			if n := f.Count(f, "interlock"); n != 0 {
				f.Errorf("%s: %d records", name, n)
			}
			free()
			f.want("free, "+name, e.pay(name), fresh(1))
			f.want("again, "+name, e.pay(name), replayed(1))
			f.Empty(f)
		}
	}},
	{name: "a lock as a middleware of its own that is lost leaves the outcome unknown", run: func(f *fixture) {
		var b payments
		e := f.serve(f.engine(), f.loses(&b), adaptertest.Layer{Lock: core.Serialize(f.locker(), "account/{id}")})
		f.want("first", e.pay("k"), refused(reason.Lost))
		f.want("at once again", e.pay("k"), refused(reason.InFlight))
		if n := b.effects.Load(); n != 1 {
			f.Errorf("the handler ran %d times", n)
		}
	}},
	{name: "the middleware is there twice", run: func(f *fixture) {
		var b payments
		locker := f.locker()
		engine := f.engine()
		again := engine.With(idempotency.Under(core.Serialize(locker, "account/{id}", core.Wait(0))))
		e := f.serve(engine, f.marks(func(ctx context.Context) (adaptertest.Result, string) {
			if core.LeaseFromContext(ctx) == nil {
				f.Error("the inner one's lock is not taken")
			}
			return b.pay(ctx)
		}), adaptertest.Layer{Idempotent: again})
		free := f.heldLock(locker)
		f.want("locked", e.pay("k"), refused(reason.Held))
		free()
		f.want("first", e.pay("k"), fresh(1))
		f.want("again", e.pay("k"), replayed(1))
		f.want("another request", e.call(payment{keys: []string{"k"}, amount: 2}), refused(reason.KeyReused))
		if n := f.Count(f, "interlock"); n != 1 {
			f.Errorf("%d records", n)
		}
	}},
}

// panicCases are the cases of functions of the application that panic.
var panicCases = []row{
	{name: "a function that panics before the handler leaves no claim", run: func(f *fixture) {
		var fail bool
		scope := func(context.Context, core.Request) (string, error) {
			if fail {
				panic(errors.New("out of order"))
			}
			return "alice", nil
		}
		keys := func(ctx context.Context, r core.Request) ([]string, error) {
			name, err := scope(ctx, r)
			return []string{name}, err
		}
		parts := func(ctx context.Context, r core.Request, _ *idempotency.Parts) error {
			_, err := scope(ctx, r)
			return err
		}
		locker := f.locker()
		for name, o := range map[string]idempotency.Option{
			"Scope":        idempotency.Scope(scope),
			"Fingerprint":  idempotency.Fingerprint(parts),
			"KeyFunc":      idempotency.Under(core.Serialize(locker, "", core.KeyFunc(keys))),
			"ContextFunc":  idempotency.Under(core.Serialize(locker, "account/{ctx.user}", core.ContextFunc("user", scope))),
			"PerPrincipal": idempotency.Under(core.Serialize(locker, "account/{id}", core.PerPrincipal(scope, 10, 10))),
		} {
			for mode, engine := range map[string]*idempotency.Engine{"": f.engine(o), ", strict": f.engine(o, idempotency.Strict())} {
				var b payments
				key := `"` + name + mode + `"`
				e := f.serve(engine, b.pay)
				fail = true
				f.want(key+": panic", e.pay(key), reply{Result: adaptertest.Failed, Text: "out of order"})
				fail = false
				f.want(key+": then", e.pay(key), fresh(1))
				f.want(key+": again", e.pay(key), replayed(1))
			}
		}
	}},
}
