package core_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/observe"
)

// shown is a request that shows its own slices, as an adapter may.
type shown struct {
	adapter.Message
	headers, query []string
}

func (r *shown) Header(string) []string { return r.headers }
func (r *shown) Query(string) []string  { return r.query }

// A function of the application sorted its argument, or lowered it in place. That
// changed the request for the handler, and the key that the next function made.
func TestFunctionsOfTheApplicationWriteToNothingButTheirOwn(t *testing.T) {
	spoil := func(req core.Request) {
		body, err := req.Body(1 << 10)
		if err != nil {
			t.Error(err)
		}
		if got := fmt.Sprintf("%s %q %q", body, req.Header("H"), req.Query("q")); got != `body ["2" "1"] ["4" "3"]` {
			t.Errorf("a function is handed %s", got)
		}
		slices.Sort(req.Header("H"))
		slices.Sort(req.Query("q"))
		clear(body)
	}
	named := func(name string) core.RequestFunc {
		return func(_ context.Context, req core.Request) (string, error) {
			spoil(req)
			return name, nil
		}
	}
	guard := core.Serialize(newLocker(t, memstore.New()), "{ctx.a}", core.ContextFunc("a", named("a")),
		core.PerPrincipal(named("alice"), 9, 9), core.KeyFunc(func(_ context.Context, req core.Request) ([]string, error) {
			spoil(req)
			return []string{"b"}, nil
		}))
	req := &shown{adapter.Message{Payload: []byte("body")}, []string{"2", "1"}, []string{"4", "3"}}
	if refusal := guard.Do(t.Context(), req, func(context.Context) bool {
		spoil(req)
		return true
	}); refusal != nil {
		t.Error(refusal)
	}
}

func TestPreparedKeysAreTheCallersOwn(t *testing.T) {
	guard := core.Serialize(newLocker(t, memstore.New()), "b", core.And("a"))
	prepared, refusal := guard.Prepare(t.Context(), &shown{})
	if refusal != nil {
		t.Fatal(refusal)
	}
	clear(prepared.Keys())
	section, refusal := prepared.Enter(t.Context())
	if refusal != nil {
		t.Fatal(refusal)
	}
	defer section.Leave(t.Context())
	if got := fmt.Sprint(core.LeaseFromContext(section.Context()).Keys()); got != "[a b]" {
		t.Errorf("locked: %s", got)
	}
}

// hashing is an observer that hashes the keys in place, before it passes them on.
type hashing struct{}

func (hashing) Start(ctx context.Context, op observe.Operation) (context.Context, observe.Observation) {
	for i, key := range op.Keys {
		op.Keys[i] = observe.Hashed(key).Hash()
	}
	return ctx, observe.Observation{}
}

// keys is an observer that notes them.
type keys struct{ seen []string }

func (k *keys) Start(ctx context.Context, op observe.Operation) (context.Context, observe.Observation) {
	k.seen = append(k.seen, op.Keys...)
	return ctx, observe.Observation{}
}

func TestAnObserverThatWritesToTheKeysChangesNoLock(t *testing.T) {
	var next keys
	locker := newLocker(t, memstore.New(), core.WithObserver(observe.Join(hashing{}, &next)))
	lease, err := locker.LockAll(t.Context(), []string{"b", "a"})
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release(t.Context())
	if got := fmt.Sprint(lease.Keys(), next.seen); got != "[a b] [a b]" {
		t.Errorf("locked, and told to the next observer: %s", got)
	}
}
