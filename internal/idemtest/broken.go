package idemtest

import (
	"context"
	"errors"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
)

// broken are the cases of functions of the application that panic.
var broken = []row{
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
				var b bank
				key := `"` + name + mode + `"`
				e := f.serve(engine, b.pay)
				fail = true
				f.want(key+": panic", e.pay(key), Answer{Outcome: Failed, Text: "out of order"})
				fail = false
				f.want(key+": then", e.pay(key), fresh(1))
				f.want(key+": again", e.pay(key), replayed(1))
			}
		}
	}},
}
