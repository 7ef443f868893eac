package idemtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/redisstore"
)

// serveStacked serves an endpoint with more middleware of ours behind Idempotent.
func (f *fixture) serveStacked(e *Endpoint) *endpoint {
	f.Helper()
	e.Left = make(chan struct{}, 1)
	return &endpoint{f, e, f.build(f, e)}
}

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

// stacked are the cases of middleware that is there more than once.
var stacked = []row{
	{name: "the refusal of a lock as a middleware of its own is not stored", run: func(f *fixture) {
		for name, opts := range map[string][]idempotency.Option{
			"default": nil, "strict": {idempotency.Strict()}, "store-all": {idempotency.StoreAll()},
		} {
			var b bank
			locker := f.locker()
			e := f.serveStacked(&Endpoint{
				Engine: f.engine(opts...), Lock: core.Serialize(locker, "account/{id}", core.Wait(0)), Handle: b.pay,
			})
			free := f.heldLock(locker)
			f.want("locked, "+name, e.pay(name), refused(core.ReasonHeld))
			if n := f.records(); n != 0 {
				f.Errorf("%s: %d records", name, n)
			}
			free()
			f.want("free, "+name, e.pay(name), fresh(1))
			f.want("again, "+name, e.pay(name), replayed(1))
			f.rdb.FlushDB(f.Context())
		}
	}},
	{name: "a bad key of a lock as a middleware of its own is not stored", run: func(f *fixture) {
		var b bank
		bad := true
		rule := core.Serialize(f.locker(), "", core.KeyFunc(func(context.Context, core.Request) ([]string, error) {
			if bad {
				return nil, core.ErrKey
			}
			return []string{"account/42"}, nil
		}))
		e := f.serveStacked(&Endpoint{Engine: f.engine(), Lock: rule, Handle: b.pay})
		f.want("bad", e.pay("k"), refused(core.ReasonBadKey))
		bad = false
		f.want("good", e.pay("k"), fresh(1))
	}},
	{name: "a lock as a middleware of its own that is lost leaves the outcome unknown", run: func(f *fixture) {
		var b bank
		e := f.serveStacked(&Endpoint{
			Engine: f.engine(),
			Lock:   core.Serialize(f.locker(), "account/{id}", core.Watchdog(1500*time.Millisecond)),
			Handle: func(ctx context.Context, _ string, _ int64) (Outcome, string) {
				b.effects.Add(1)
				f.rdb.Del(context.WithoutCancel(ctx), "interlock:{account/42}")
				f.wait("the loss is noticed", ctx.Done())
				return Nothing, ""
			},
		})
		f.want("first", e.pay("k"), refused(core.ReasonLost))
		f.want("at once again", e.pay("k"), refused(core.ReasonInFlight))
		if n := b.effects.Load(); n != 1 {
			f.Errorf("the handler ran %d times", n)
		}
	}},
	{name: "a lock around the endpoint that is lost leaves the outcome unknown", run: func(f *fixture) {
		var b bank
		locker := f.locker()
		var lease *core.Lease
		e := f.serveStacked(&Endpoint{
			Engine: f.engine(),
			Context: func(ctx context.Context) context.Context {
				if lease != nil {
					return ctx
				}
				var err error
				if lease, err = locker.Lock(ctx, "account/42", core.Watchdog(1500*time.Millisecond)); err != nil {
					f.Error(err)
				}
				return lease.Context()
			},
			Handle: func(ctx context.Context, _ string, _ int64) (Outcome, string) {
				b.effects.Add(1)
				f.rdb.Del(context.WithoutCancel(ctx), "interlock:{account/42}")
				f.wait("the loss is noticed", ctx.Done())
				return Nothing, ""
			},
		})
		f.want("first", e.pay("k"), refused(core.ReasonLost))
		f.want("at once again", e.pay("k"), refused(core.ReasonInFlight))
		_ = lease.Release(f.Context())
		if n := b.effects.Load(); n != 1 {
			f.Errorf("the handler ran %d times", n)
		}
	}},
	{name: "an answer after a lock was refused inside the handler is stored", run: func(f *fixture) {
		var b bank
		locker := f.locker()
		inner := core.Serialize(locker, "", core.Wait(0), core.KeyFunc(func(context.Context, core.Request) ([]string, error) {
			return []string{"account/42"}, nil
		}))
		e := f.serve(f.engine(), func(ctx context.Context, account string, amount int64) (Outcome, string) {
			refusal := inner.Do(ctx, foreign{protocol: f.protocol}, func(context.Context) bool { return true })
			if refusal == nil || refusal.Reason != core.ReasonHeld {
				f.Errorf("refused: %+v", refusal)
			}
			return b.pay(ctx, account, amount)
		})
		free := f.heldLock(locker)
		f.want("first", e.pay("k"), fresh(1))
		free()
		f.want("again", e.pay("k"), replayed(1))
	}},
	{name: "the middleware is there twice", run: func(f *fixture) {
		var b bank
		locker := f.locker()
		engine := f.engine()
		e := f.serveStacked(&Endpoint{
			Engine: engine, Again: engine.With(idempotency.Under(core.Serialize(locker, "account/{id}", core.Wait(0)))),
			Handle: func(ctx context.Context, account string, amount int64) (Outcome, string) {
				if core.LeaseFromContext(ctx) == nil {
					f.Error("the inner one's lock is not taken")
				}
				if err := idempotency.MarkEffect(ctx); err != nil {
					f.Error(err)
				}
				return b.pay(ctx, account, amount)
			},
		})
		free := f.heldLock(locker)
		f.want("locked", e.pay("k"), refused(core.ReasonHeld))
		free()
		f.want("first", e.pay("k"), fresh(1))
		f.want("again", e.pay("k"), replayed(1))
		f.want("another request", e.call(Request{Keys: []string{"k"}, Amount: 2}), refused(core.ReasonKeyReused))
		if n := f.records(); n != 1 {
			f.Errorf("%d records", n)
		}
	}},
	{name: "two services in one process keep a record each", run: func(f *fixture) {
		var b bank
		bank, err := redisstore.New(f.rdb, redisstore.Prefix("bank"))
		if err != nil {
			f.Fatal(err)
		}
		f.Cleanup(func() {
			if err := bank.Close(); err != nil {
				f.Error(err)
			}
		})
		own := f.store
		f.store = bank
		inner := f.engine()
		f.store = own
		failures := 0
		e := f.serveStacked(&Endpoint{
			Engine: f.engine(), Again: inner,
			Handle: func(ctx context.Context, account string, amount int64) (Outcome, string) {
				if failures++; failures == 1 {
					return Failed, "out of order"
				}
				return b.pay(ctx, account, amount)
			},
		})
		f.want("failed", e.pay("k"), Answer{Outcome: Failed, Text: "out of order"})
		f.want("first", e.pay("k"), fresh(1))
		f.want("again", e.pay("k"), replayed(1))
		if n := len(f.rdb.Keys(f.Context(), "bank:idem:*").Val()); n != 1 || f.records() != 1 {
			f.Errorf("%d records inside, %d outside", n, f.records())
		}
	}},
	{name: "a function of a rule that panics before the handler leaves no claim", run: func(f *fixture) {
		for name, opts := range map[string][]idempotency.Option{"default": nil, "strict": {idempotency.Strict()}} {
			for _, under := range []bool{true, false} {
				var b bank
				broken := true
				rule := core.Serialize(f.locker(), "account/{id}", core.PerPrincipal(
					func(context.Context, core.Request) (string, error) {
						if broken {
							panic(errors.New("no principal today"))
						}
						return "alice", nil
					}, 10, 10))
				stack := &Endpoint{Engine: f.engine(append(opts, idempotency.Under(rule))...), Handle: b.pay}
				if !under {
					stack.Engine, stack.Lock = f.engine(opts...), rule
				}
				e := f.serveStacked(stack)
				key := fmt.Sprint(name, under)
				f.want("panic, "+key, e.pay(key), Answer{Outcome: Failed, Text: "no principal today"})
				broken = false
				f.want("then, "+key, e.pay(key), fresh(1))
			}
		}
	}},
}
