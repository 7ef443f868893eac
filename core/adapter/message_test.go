package adapter_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
)

// A message has the same keys as a request for the same resource.
func TestAGuardMakesItsKeysOfTheMetadataOfAMessage(t *testing.T) {
	locker, err := core.New(memstore.New())
	if err != nil {
		t.Fatal(err)
	}
	type user struct{}
	with := core.ContextFunc("user", core.FromContext(user{}))
	ctx := context.WithValue(t.Context(), user{}, "alice")
	for template, want := range map[string]string{
		"account/{account}":            "account/42",
		"account/{account:int}":        "account/42",
		"tenant/{header.X-Tenant}":     "tenant/acme%2Fnorth",
		"user/{ctx.user}":              "user/alice",
		"account/{Account}":            "", // of a parameter case counts
		"account/{missing}":            "",
		"account/{header.Missing}":     "",
		"account/{header.Twice}":       "",
		"account/{query.account}":      "",
		"account/{empty}":              "",
		"account/{header.Empty}/{xyz}": "",
	} {
		m := &adapter.Message{
			Name: "charge", Lookup: ctx.Value, Payload: []byte("pay"), Source: "native",
			Metadata: map[string]string{
				"account": "42", "x-tenant": "acme/north", "twice": "1", "Twice": "2", "empty": "",
			},
		}
		guard, err := core.NewGuard(locker, template, with)
		if err != nil {
			t.Fatal(err)
		}
		keys, err := guard.Keys(ctx, m)
		switch {
		case want == "" && core.ReasonOf(ctx, err) != reason.BadKey:
			t.Errorf("%s: keys %q, %v; want a refusal for a bad key", template, keys, err)
		case want != "" && (err != nil || len(keys) != 1 || keys[0] != want):
			t.Errorf("%s: keys %q, %v; want %s", template, keys, err, want)
		}
	}
}

func TestAMessageHasABodyUpToTheLimit(t *testing.T) {
	m := &adapter.Message{Payload: []byte("pay"), Source: 7}
	if body, err := m.Body(3); err != nil || string(body) != "pay" {
		t.Errorf("%q, %v", body, err)
	}
	if _, err := m.Body(2); !errors.Is(err, adapter.ErrBodyLimit) {
		t.Errorf("a body over the limit: %v", err)
	}
	if m.Value("user") != nil || m.Native() != 7 {
		t.Errorf("without a Lookup: %v; native %v", m.Value("user"), m.Native())
	}
	if _, matched := (&adapter.Message{}).Route(); !matched {
		t.Error("a message without a name counts as not matched, and would get no lock")
	}
}

func TestTheValuesOfAMessageComeInOneOrder(t *testing.T) {
	m := &adapter.Message{Metadata: map[string]string{"name": "1", "Name": "2", "NAME": "3"}}
	for range 20 { // the order of a map is another one each time
		if got := m.Header("Name"); !slices.Equal(got, []string{"1", "2", "3"}) {
			t.Fatalf("%q", got)
		}
	}
}
