package observe

import (
	"context"
	"slices"
)

// Join makes one [Observer] of several: each gets every event, in the order given.
// Start of one gets the context that Start of the one before it has returned. A nil
// Observer is left out; Join returns nil if no other is left. If one panics, the
// following Observers do not get that event.
func Join(observers ...Observer) Observer {
	var all joined
	for _, o := range observers {
		if o != nil {
			all = append(all, o)
		}
	}
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return all
}

type joined []Observer

// Start implements [Observer].
func (j joined) Start(ctx context.Context, op Operation) (context.Context, Observation) {
	var all Observation
	for _, o := range j {
		var next Observation
		own := op
		own.Keys = slices.Clone(op.Keys)
		ctx, next = o.Start(ctx, own) //nolint:fatcontext // one for each observer, of which there are few
		all = Observation{
			Acquired:   both(all.Acquired, next.Acquired),
			Released:   both(all.Released, next.Released),
			Renewed:    both(all.Renewed, next.Renewed),
			Lost:       both(all.Lost, next.Lost),
			Disordered: bothTexts(all.Disordered, next.Disordered),
			Bypassed:   both(all.Bypassed, next.Bypassed),
			Rejected:   both(all.Rejected, next.Rejected),
			Gathered:   both(all.Gathered, next.Gathered),
			Decided:    both(all.Decided, next.Decided),
		}
	}
	return ctx, all
}

// both calls two functions, of which each may be nil.
func both[T any](f, g func(T)) func(T) {
	switch {
	case f == nil:
		return g
	case g == nil:
		return f
	}
	return func(v T) { f(v); g(v) }
}

func bothTexts(f, g func(a, b string)) func(a, b string) {
	switch {
	case f == nil:
		return g
	case g == nil:
		return f
	}
	return func(a, b string) { f(a, b); g(a, b) }
}
