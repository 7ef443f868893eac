package observe_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/interlock-go/interlock/core/observe"
)

// noter records its calls.
type noter struct {
	name string
	into *[]string
}

func (n noter) Start(ctx context.Context, _ observe.Operation) (context.Context, observe.Observation) {
	before, _ := ctx.Value(noter{}).(string)
	note := func(what string) { *n.into = append(*n.into, n.name+" "+what) }
	note("start after " + before)
	return context.WithValue(ctx, noter{}, before+n.name), observe.Observation{
		Acquired:   func(observe.Acquired) { note("acquired") },
		Released:   func(observe.Released) { note("released") },
		Renewed:    func(observe.Renewed) { note("renewed") },
		Lost:       func(observe.Loss) { note("lost") },
		Disordered: func(key, held string) { note("disordered " + key + held) },
		Bypassed:   func(err error) { note("bypassed " + err.Error()) },
		Rejected:   func(err error) { note("rejected " + err.Error()) },
		Decided:    func(observe.Decided) { note("decided") },
	}
}

// deaf observes nothing.
type deaf struct{}

func (deaf) Start(ctx context.Context, _ observe.Operation) (context.Context, observe.Observation) {
	return ctx, observe.Observation{}
}

func TestJoinedObserversAreAllToldInOrder(t *testing.T) {
	var got []string
	_, o := observe.Join(nil, noter{"a", &got}, deaf{}, noter{"b", &got}).Start(t.Context(), observe.Operation{})
	o.Acquired(observe.Acquired{})
	o.Released(observe.Released{})
	o.Renewed(observe.Renewed{})
	o.Lost(observe.Loss{})
	o.Disordered("k", "l")
	o.Bypassed(errors.New("down"))
	o.Rejected(errors.New("bad"))
	o.Decided(observe.Decided{})
	want := []string{"a start after ", "b start after a"}
	for _, what := range []string{"acquired", "released", "renewed", "lost", "disordered kl", "bypassed down", "rejected bad", "decided"} {
		want = append(want, "a "+what, "b "+what)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q; want %q", got, want)
	}
}

func TestWhatNoJoinedObserverWantsIsNotCalled(t *testing.T) {
	_, o := observe.Join(deaf{}, deaf{}).Start(t.Context(), observe.Operation{})
	if o.Acquired != nil || o.Disordered != nil || o.Lost != nil {
		t.Errorf("%+v", o)
	}
	if o := observe.Join(nil, nil); o != nil {
		t.Errorf("no observers: %v", o)
	}
	if one := observe.Join(nil, deaf{}); one != (deaf{}) {
		t.Errorf("one observer: %v", one)
	}
}
