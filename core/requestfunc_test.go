package core_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core"
)

// valued is a request with one value in its context.
type valued struct {
	request
	key, value any
}

func (q valued) Value(key any) any {
	if key == q.key {
		return q.value
	}
	return nil
}

func TestFromContextTakesStringsOnly(t *testing.T) {
	type userID string
	type key struct{}
	for name, c := range map[string]struct {
		req  valued
		want string
		bad  bool
	}{
		"a string":            {valued{nil, key{}, "alice"}, "alice", false},
		"a type of strings":   {valued{nil, key{}, userID("alice")}, "alice", false},
		"nothing":             {valued{nil, "another", "alice"}, "", false},
		"an empty string":     {valued{nil, key{}, ""}, "", false},
		"a number":            {valued{nil, key{}, 0}, "", true}, // of everybody that is not signed in
		"a pointer to a user": {valued{nil, key{}, &struct{ Name string }{"alice"}}, "", true},
	} {
		got, err := core.FromContext(key{})(t.Context(), c.req)
		if got != c.want || (err != nil) != c.bad || errors.Is(err, core.ErrKey) {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
		if c.bad && strings.Contains(err.Error(), "alice") {
			t.Errorf("%s: the error has the value: %v", name, err)
		}
	}
}

// One function does for the key, the limits, and the scope of idempotency.
func TestOneFunctionServesEveryOptionThatAsksForThePrincipal(t *testing.T) {
	inWorld(t, func(w *world) {
		asked := 0
		principal := func(_ context.Context, req core.Request) (string, error) {
			asked++
			name, _ := req.Value("user").(string)
			return name, nil
		}
		g := core.Serialize(w.locker, "user/{ctx.user}", core.ContextFunc("user", principal), core.PerPrincipal(principal, 1, 1))
		ran := false
		refusal := g.Do(w.Context(), request{"user": "alice"}, func(ctx context.Context) bool {
			ran = core.LeaseFromContext(ctx).Key() == "user/alice"
			return true
		})
		if refusal != nil || !ran || asked != 2 {
			w.Errorf("refusal %+v, ran %v, asked %d times", refusal, ran, asked)
		}
	})
}
