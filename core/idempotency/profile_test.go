package idempotency_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/admin"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
)

// Each pair is two bodies and whether they are one request (Agentic Checkout, 6.2).
func TestBodiesAreComparedAsJSON(t *testing.T) {
	deep := strings.Repeat("[", 101) + strings.Repeat("]", 101)
	for _, c := range []struct {
		name, a, b string
		equal      bool
	}{
		{"the order of names", `{"a":1,"b":[{"c":2,"d":3}]}`, ` {"b" : [{"d":3,"c":2}], "a":1}`, true},
		{"null is not an absent name", `{"a":null}`, `{}`, false},
		{"the order of elements", `[1,2]`, `[2,1]`, false},
		{"zeros at the end", `{"a":1.0}`, `{"a":1}`, true},
		{"zeros that count", `{"a":10}`, `{"a":1}`, false},
		{"exponents", `[100, 0.5, -1200]`, `[1e2, 50E-2, -12.00e+2]`, true},
		{"zero has no sign", `-0.0`, `0e7`, true},
		{"signs", `-1`, `1`, false},
		{"more digits than a float has", `12345678901234567890`, `12345678901234567891`, false},
		{"an exponent that nothing can hold", `1e99999999999999999999`, `1e99999999999999999999`, true},
		{"escapes", `"\u0041\/"`, `"A/"`, true},
		{"a text is no number", `"1"`, `1`, false},
		{"one element and two", `["a,b"]`, `["a","b"]`, false},
		{"a name twice", `{"a":1,"a":2}`, ` {"a":1,"a":2}`, false},
		{"a name twice, in two cases", `{"amount":1,"Amount":2}`, `{"Amount":2,"amount":1}`, false},
		{"halves of surrogate pairs", `"\ud800"`, `"\ud801"`, false},
		{"bytes that are no text", "\"\xff\"", "\"\xfe\"", false},
		{"nested deeper than is read", deep, " " + deep, false},
		{"no JSON", `a=1&b=2`, `b=2&a=1`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				e := w.engine(idempotency.EqualJSON())
				n := 0
				q := post("k")
				q.body = c.a
				w.want(serve(w.Context(), e, q, answers(200, &n)), "200 run 1")
				q.body = c.b
				want := "idempotency-key-reused"
				if c.equal {
					want = "replay 200 run 1"
				}
				w.want(serve(w.Context(), e, q, answers(200, &n)), want)
			})
		})
	}
}

// A function given to Fingerprint sees the compared parts.
func TestAFingerprintGetsTheCanonicalBody(t *testing.T) {
	inBubble(t, func(w *world) {
		var seen string
		e := w.engine(idempotency.EqualJSON(), idempotency.Fingerprint(
			func(_ context.Context, _ core.Request, p *idempotency.Parts) error {
				seen = string(p.Body)
				return nil
			}))
		n := 0
		q := post("k")
		q.body = `{ "b": 1.50, "a": ["<"] }`
		w.want(serve(w.Context(), e, q, answers(200, &n)), "200 run 1")
		if want := `{"a":["\u003c"],"b":15e-1}`; seen != want {
			w.Errorf("%s; want %s", seen, want)
		}
	})
}

func TestAKeyBelongsToItsEndpoint(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine(idempotency.PerEndpoint())
		n := 0
		create, update := post("k"), post("k")
		update.path = "/payments/1 2"
		replace := update
		replace.method = "PUT"
		for i, q := range []request{create, update, replace} {
			w.want(serve(w.Context(), e, q, answers(200, &n)), "200 run "+string(rune('1'+i)))
		}
		for i, q := range []request{create, update, replace} {
			w.want(serve(w.Context(), e, q, answers(200, &n)), "replay 200 run "+string(rune('1'+i)))
		}
		scope := idempotency.EndpointScope("alice", "POST", "/payments/1 2")
		if err := e.Forget(w.Context(), scope, "k"); err != nil {
			w.Error(err)
		}
		w.want(serve(w.Context(), e, update, answers(200, &n)), "200 run 4")
	})
}

// Neither a principal nor a path can make the scope of another endpoint.
func TestScopesOfEndpointsAreDistinct(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range [][3]string{
		{"a", "POST", "/x"},
		{"", "POST", "/x a"},
		{" a", "POST", "/x"},
		{"a", "POST", "/x "},
		{"a", "POST", "/x%20"},
		{"POST /x a", "POST", "/x"},
		{"a", "PUT", "/x"},
		{"a", "", "/x"},
	} {
		scope := idempotency.EndpointScope(s[0], s[1], s[2])
		if seen[scope] {
			t.Errorf("%q twice", scope)
		}
		seen[scope] = true
	}
}

// Two endpoints of one service have engines with one store, and only one has PerEndpoint. A
// client that may choose its name must not get another client's answers by it.
func TestAPrincipalCannotNameTheScopeOfAnotherPrincipal(t *testing.T) {
	inBubble(t, func(w *world) {
		n := 0
		w.want(serve(w.Context(), w.engine(idempotency.PerEndpoint()), post("k"), answers(200, &n)), "200 run 1")
		for _, c := range []struct{ principal, want string }{
			{"POST /payments alice", "200 run 2"},
			{idempotency.EndpointScope("alice", "POST", "/payments"), "idempotency-no-principal"},
			{idempotency.ServiceScope("shop", "alice"), "idempotency-no-principal"},
			{"interlock function\x00alice", "idempotency-no-principal"},
		} {
			q := post("k")
			q.scope = c.principal
			w.want(serve(w.Context(), w.engine(), q, answers(200, &n)), c.want)
		}
	})
}

// A route that clients poll gives Look what it has authenticated.
func TestLooksAndOperatorsRefuseThePrincipalsThatTheEndpointRefuses(t *testing.T) {
	inBubble(t, func(w *world) {
		n := 0
		plain, per := w.engine(), w.engine(idempotency.PerEndpoint())
		w.want(serve(w.Context(), per, post("k"), answers(200, &n)), "200 run 1")
		endpointOf := func(principal string) string { return idempotency.EndpointScope(principal, "POST", "/payments") }
		for name, c := range map[string]struct {
			engine      *idempotency.Engine
			scope       string
			looks, rest bool // accepted
		}{
			"a principal":                          {plain, "alice", true, true},
			"the endpoint of another engine":       {plain, endpointOf("alice"), false, false},
			"the endpoint of the engine":           {per, endpointOf("alice"), true, true},
			"a principal with spaces there":        {per, endpointOf(" a b "), true, true},
			"a reserved principal there":           {per, endpointOf(endpointOf("alice")), false, false},
			"an endpoint without a principal":      {per, "interlock endpoint POST /payments", false, false},
			"a service":                            {per, idempotency.ServiceScope("shop", "alice"), false, false},
			"a function":                           {plain, "interlock function\x00alice", false, true},
			"a reserved principal of a function":   {plain, "interlock function\x00interlock function\x00alice", false, false},
			"anything else that begins like these": {plain, "interlock else", false, false},
		} {
			_, look := c.engine.Look(w.Context(), c.scope, "k2")
			resolve := c.engine.Resolve(w.Context(), c.scope, "k2", admin.NotCarriedOut())
			forget := c.engine.Forget(w.Context(), c.scope, "k2")
			if (look == nil) != c.looks || errors.Is(resolve, idempotency.ErrNotUnknown) != c.rest || (forget == nil) != c.rest {
				t.Errorf("%s: Look %v, Resolve %v, Forget %v; want them accepted: %v, %v", name, look, resolve, forget, c.looks, c.rest)
			}
			if !c.looks && !errors.Is(look, endpoint.ErrNoPrincipal) || !c.rest && (!errors.Is(resolve, endpoint.ErrNoPrincipal) || !errors.Is(forget, endpoint.ErrNoPrincipal)) {
				t.Errorf("%s: Look %v, Resolve %v, Forget %v; want ErrNoPrincipal", name, look, resolve, forget)
			}
		}
		p, err := per.Look(w.Context(), endpointOf("alice"), "k")
		if err != nil || p.Stage != idempotency.StageFinished {
			t.Errorf("%+v, %v; want the record of the endpoint", p, err)
		}
	})
}

// A profile is more than a form: an option that breaks a rule of its protocol is refused.
func TestAProfileRefusesWhatItsProtocolForbids(t *testing.T) {
	const agentic, universal = reason.AgenticCommerce, reason.UniversalCommerce
	for name, c := range map[string]struct {
		option idempotency.Option
		of     []reason.Profile
	}{
		"answers are kept for 24 h (6.6)":            {idempotency.Retention(24*time.Hour - 1), []reason.Profile{agentic, universal}},
		"on storage failure: fail closed":            {idempotency.FailOpen(), []reason.Profile{agentic, universal}},
		"the original response is returned (6.3)":    {idempotency.ReleaseInvalid(), []reason.Profile{agentic, universal}},
		"every POST has a key (6.1)":                 {idempotency.Optional(), []reason.Profile{agentic}},
		"5xx is not cached (6.5)":                    {idempotency.StoreAll(), []reason.Profile{agentic}},
		"5xx is not cached (6.5), nor by Strict":     {idempotency.Strict(), []reason.Profile{agentic}},
		"after expiry, a key is new, no error (6.6)": {idempotency.Tombstone(time.Hour), []reason.Profile{agentic}},
		"a profile that is not there":                {idempotency.Profile("else"), []reason.Profile{agentic, universal, reason.IETFDraft}},
	} {
		for _, p := range []reason.Profile{agentic, universal, reason.IETFDraft} {
			_, err := idempotency.New(memstore.New(), idempotency.Global(), idempotency.Profile(p), c.option)
			forbidden := false
			for _, of := range c.of {
				forbidden = forbidden || of == p
			}
			if forbidden != errors.Is(err, core.ErrConfig) || !forbidden && err != nil {
				t.Errorf("%s, profile %q: %v", name, p, err)
			}
		}
	}
}

// An operator resolves the record of an endpoint by the scope of the endpoint.
func TestUnderAProfileAnOutcomeCanBeResolved(t *testing.T) {
	inBubble(t, func(w *world) {
		profile := idempotency.Profile(reason.AgenticCommerce)
		e := w.engine(profile)
		crashed(w.store, "k", profile)
		n := 0
		w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "idempotency-outcome-unknown")
		scope := idempotency.EndpointScope("alice", "POST", "/payments")
		if err := e.Resolve(w.Context(), scope, "k", admin.NotCarriedOut()); err != nil {
			w.Error(err)
		}
		w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "200 run 1")
	})
}
