package idemcases

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/adaptertest"
	"github.com/interlock-go/interlock/internal/frameworks"
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

// loses is a handler whose lock of account 42 is lost once, and that then pays.
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
			e := f.serve(f.engine(opts...), b.pay, frameworks.Locks(core.Serialize(locker, "account/{id}", core.Wait(0)))...)
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
	{name: "a bad key of a lock as a middleware of its own is not stored", run: func(f *fixture) {
		var b payments
		bad := true
		rule := core.Serialize(f.locker(), "", core.KeyFunc(func(context.Context, core.Request) ([]string, error) {
			if bad {
				return nil, core.ErrKey
			}
			return []string{"account/42"}, nil
		}))
		e := f.serve(f.engine(), b.pay, frameworks.Locks(rule)...)
		f.want("bad", e.pay("k"), refused(reason.BadKey))
		bad = false
		f.want("good", e.pay("k"), fresh(1))
	}},
	{name: "a lock as a middleware of its own that is lost leaves the outcome unknown", run: func(f *fixture) {
		var b payments
		e := f.serve(f.engine(), f.loses(&b), frameworks.Locks(core.Serialize(f.locker(), "account/{id}"))...)
		f.want("first", e.pay("k"), refused(reason.Lost))
		f.want("at once again", e.pay("k"), refused(reason.InFlight))
		if n := b.effects.Load(); n != 1 {
			f.Errorf("the handler ran %d times", n)
		}
	}},
	{name: "a lock around the endpoint that is lost leaves the outcome unknown", run: func(f *fixture) {
		var b payments
		locker := f.locker()
		var lease *core.Lease
		e := f.serveUnder(func(ctx context.Context) context.Context {
			if lease != nil {
				return ctx
			}
			var err error
			if lease, err = locker.Lock(ctx, "account/42"); err != nil {
				f.Error(err)
			}
			return lease.Context()
		}, f.engine(), f.loses(&b))
		f.want("first", e.pay("k"), f.lost())
		f.want("at once again", e.pay("k"), f.afterLoss(fresh(2)))
		_ = lease.Release(f.Context())
		if n := b.effects.Load(); f.ledger == nil && n != 1 {
			f.Errorf("the handler ran %d times", n)
		}
	}},
	{name: "an answer after a lock was refused inside the handler is stored", run: func(f *fixture) {
		var b payments
		locker := f.locker()
		inner := core.Serialize(locker, "", core.Wait(0), core.KeyFunc(func(context.Context, core.Request) ([]string, error) {
			return []string{"account/42"}, nil
		}))
		e := f.serve(f.engine(), func(ctx context.Context) (adaptertest.Result, string) {
			refusal := inner.Do(ctx, foreign{protocol: f.protocol()}, func(context.Context) bool { return true })
			if refusal == nil || refusal.Reason != reason.Held {
				f.Errorf("refused: %+v", refusal)
			}
			return b.pay(ctx)
		})
		free := f.heldLock(locker)
		f.want("first", e.pay("k"), fresh(1))
		free()
		f.want("again", e.pay("k"), replayed(1))
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
	{name: "two services in one process keep a record each", run: func(f *fixture) {
		var b payments
		inner := f.engineOn(f.Store(f, "bank"))
		failures := 0
		e := f.serve(f.engine(), func(ctx context.Context) (adaptertest.Result, string) {
			if failures++; failures == 1 {
				return adaptertest.Failed, "out of order"
			}
			return b.pay(ctx)
		}, adaptertest.Layer{Idempotent: inner})
		f.want("failed", e.pay("k"), reply{Result: adaptertest.Failed, Text: "out of order"})
		f.want("first", e.pay("k"), fresh(1))
		f.want("again", e.pay("k"), replayed(1))
		if n := f.Count(f, "bank"); n != 1 || f.Count(f, "interlock") != 1 {
			f.Errorf("%d records inside, %d outside", n, f.Count(f, "interlock"))
		}
	}},
	{name: "a function of a rule that panics before the handler leaves no claim", run: func(f *fixture) {
		for name, opts := range map[string][]idempotency.Option{"default": nil, "strict": {idempotency.Strict()}} {
			for _, under := range []bool{true, false} {
				var b payments
				broken := true
				rule := core.Serialize(f.locker(), "account/{id}", core.PerPrincipal(
					func(context.Context, core.Request) (string, error) {
						if broken {
							panic(errors.New("no principal today"))
						}
						return "alice", nil
					}, 10, 10))
				engine, behind := f.engine(append(opts, idempotency.Under(rule))...), frameworks.Locks()
				if !under {
					engine, behind = f.engine(opts...), frameworks.Locks(rule)
				}
				e := f.serve(engine, b.pay, behind...)
				key := fmt.Sprint(name, under)
				f.want("panic, "+key, e.pay(key), reply{Result: adaptertest.Failed, Text: "no principal today"})
				broken = false
				f.want("then, "+key, e.pay(key), fresh(1))
			}
		}
	}},
}

// waitingCases are the cases of duplicates that wait for the answer (WaitReplay).
var waitingCases = []row{
	{name: "a duplicate that waits is refused as in flight at its own deadline", run: func(f *fixture) {
		for name, opts := range map[string][]idempotency.Option{"default": nil, "fails-open": {idempotency.FailOpen()}} {
			var b payments
			g, over := adaptertest.NewGate(), make(chan struct{})
			engine := f.engine(append(opts, idempotency.WaitReplay(adaptertest.Patience))...)
			first := f.serve(engine, held(g, b.pay)).start(name)
			f.wait("inside", g.Inside)
			limited := f.serveUnder(func(ctx context.Context) context.Context {
				return adaptertest.DeadlineContext{Context: ctx, Over: over}
			}, engine, b.pay)
			second := limited.waiter(name)
			close(over)
			f.want("second, "+name, second(), refused(reason.InFlight))
			close(g.Leave)
			f.want("first, "+name, first(), fresh(1))
		}
	}},
	{name: "duplicates that wait are bounded", run: func(f *fixture) {
		var b payments
		g := adaptertest.NewGate()
		e := f.serve(f.engine(idempotency.WaitReplay(adaptertest.Patience), idempotency.MaxWaiters(1)), held(g, b.pay))
		first := e.start("k")
		f.wait("inside", g.Inside)
		second := e.waiter("k")
		for range 3 {
			f.want("one more", e.pay("k"), refused(reason.InFlight))
		}
		close(g.Leave)
		f.want("first", first(), fresh(1))
		f.want("second", second(), replayed(1))
	}},
	{name: "the store hangs while a duplicate waits", own: true, run: func(f *fixture) {
		var b payments
		g := adaptertest.NewGate()
		// The duplicate asks again at the end of the lease that the store has named. The lease
		// must not end before, even if the machine stands still for three seconds.
		engine := f.engine(idempotency.WaitReplay(adaptertest.Patience), idempotency.Lease(6*time.Second), idempotency.FailOpen())
		e := f.serve(engine, held(g, b.pay))
		first := e.start("k")
		f.wait("inside", g.Inside)
		second := e.waiter("k")
		f.Kill(f)
		f.Lapse(f)
		f.want("second", second(), refused(reason.InFlight))
		f.Restart(f)
		close(g.Leave)
		first()
		if n := b.effects.Load(); n != 1 {
			f.Errorf("%d effects", n)
		}
	}},
}

// xor is a Seal that hides the text, and nothing else.
func xor(b []byte) ([]byte, error) {
	out := make([]byte, len(b))
	for i := range b {
		out[i] = b[i] ^ 0x55
	}
	return out, nil
}

// sealingCases are the cases of answers that are not stored as they are, or not sent.
var sealingCases = []row{
	{name: "a sealed answer is replayed", run: func(f *fixture) {
		var b payments
		plain := f.engine()
		sealed := f.serve(plain.With(idempotency.Seal(xor, xor)), b.pay)
		f.want("first", sealed.pay("k"), fresh(1))
		f.want("again", sealed.pay("k"), replayed(1))
		if strings.Contains(f.Dump(f), "payment 1") {
			f.Error("a sealed answer is stored in plain text")
		}
		e := f.serve(plain, b.pay)
		f.want("without Seal", e.pay("k"), refused(reason.NoRecord))
		f.want("in plain text", e.pay("l"), fresh(2))
		f.want("stored before Seal", sealed.pay("l"), replayed(2))
		if !strings.Contains(f.Dump(f), "payment 2") {
			f.Error("the test does not see what is stored")
		}
	}},
	{name: "an answer that cannot be sealed is sent and not stored", run: func(f *fixture) {
		for name, seal := range map[string]func([]byte) ([]byte, error){
			"error": func([]byte) ([]byte, error) { return nil, errors.New("no key") },
			"panic": func([]byte) ([]byte, error) { panic("no key") },
		} {
			var b payments
			e := f.serve(f.engine(idempotency.Seal(seal, xor)), b.pay)
			f.want(name+": first", e.pay(name), fresh(1))
			f.want(name+": again", e.pay(name), refused(reason.ResponseUnavailable))
		}
	}},
	{name: "an answer that cannot be opened", run: func(f *fixture) {
		var b payments
		e := f.serve(f.engine(idempotency.Seal(xor, func([]byte) ([]byte, error) { return nil, errors.New("no key") })), b.pay)
		f.want("first", e.pay("k"), fresh(1))
		f.want("again", e.pay("k"), refused(reason.NoRecord))
	}},
	{name: "an answer over the limit whose lock was lost is not sent", where: outside, run: func(f *fixture) {
		rule := core.Serialize(f.locker(), "account/{id}", core.CheckAnswer())
		e := f.serve(f.engine(idempotency.Under(rule), idempotency.MaxResponse(100)),
			func(context.Context) (adaptertest.Result, string) {
				f.loseLock()
				return adaptertest.OK, strings.Repeat("done, so it thinks; ", 1000)
			})
		f.want("first", e.pay("k"), refused(reason.Lost))
		f.want("its outcome is not stored", e.pay("k"), refused(reason.InFlight))
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
