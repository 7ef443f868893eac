package core_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/internal/carrier"
	"github.com/interlock-go/interlock/internal/testkit/freestore"
)

// plain is a request without anything that a key could be made of.
type plain struct{ core.Request }

func (plain) Header(string) []string { return nil }

func (plain) Route() (string, bool) { return "", true }

func TestGuardsReportOutcomesFromTheInside(t *testing.T) {
	locker := freestore.Locker(t)
	rule := func(name string) *core.Guard { return core.Serialize(locker, name) }
	refuses := core.Serialize(locker, "", core.KeyFunc(func(context.Context, core.Request) ([]string, error) {
		return nil, core.ErrKey
	}))
	throws := core.Serialize(locker, "", core.KeyFunc(func(context.Context, core.Request) ([]string, error) {
		panic("no key")
	}))
	does := func(g *core.Guard, inside ...func(ctx context.Context)) func(ctx context.Context) {
		return func(ctx context.Context) {
			g.Do(ctx, plain{}, func(ctx context.Context) bool {
				for _, f := range inside {
					f(ctx)
				}
				return true
			})
		}
	}
	for name, c := range map[string]struct {
		do   func(ctx context.Context)
		want string
	}{
		"one that runs":                   {does(rule("a")), "[ran]"},
		"one that refuses":                {does(refuses), "[bad-key]"},
		"one that panics before":          {does(throws), "[internal]"},
		"one that panics after":           {does(rule("a"), func(context.Context) { panic("no money") }), "[ran]"},
		"a refusal inside":                {does(rule("a"), does(refuses)), "[bad-key]"},
		"a handler inside":                {does(rule("a"), does(rule("b"))), "[ran]"},
		"a refusal and a handler inside":  {does(rule("a"), does(refuses), does(rule("b"))), "[bad-key ran]"},
		"a panic before a handler inside": {does(rule("a"), does(throws)), "[internal]"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			ctx := context.WithValue(t.Context(), carrier.Reporter, func(refusal *core.Refusal) {
				if refusal == nil {
					got = append(got, "ran")
				} else {
					got = append(got, string(refusal.Reason))
				}
			})
			func() {
				defer func() { _ = recover() }()
				c.do(ctx)
			}()
			if fmt.Sprint(got) != c.want {
				t.Errorf("reported %v; want %v", got, c.want)
			}
		})
	}
}
