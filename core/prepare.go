package core

import (
	"context"
	"slices"
)

// Prepared is a request whose keys are made, and whose locks are not taken yet. The
// zero value belongs to no guard: it has no keys, and takes no lock.
type Prepared struct {
	guard *Guard // nil: the request runs without a lock
	req   Request
	route string
	keys  []string
}

// Prepare is the first half of [Guard.Enter]: it makes the keys of a request, for a
// caller that must know the keys before it takes the locks. It reads the body if
// the guard has [ReadBody]. A request without a matched route gives the zero
// Prepared.
func (g *Guard) Prepare(ctx context.Context, req Request) (Prepared, *Refusal) {
	route, matched := req.Route()
	if !matched {
		return Prepared{}, nil
	}
	keys, err := g.Keys(ctx, req)
	if err != nil {
		return Prepared{}, g.rejected(ctx, req, err)
	}
	if c := g.config.guard; c.readBody {
		if _, err := req.Body(c.bodyLimit); err != nil {
			return Prepared{}, g.rejected(ctx, req, err)
		}
	}
	return Prepared{g, req, route, keys}, nil
}

// Keys returns the keys. The caller may change the slice.
func (p Prepared) Keys() []string { return slices.Clone(p.keys) }

// Enter is the second half of [Guard.Enter]: it takes the locks. Call it at most
// once. The zero Prepared takes no lock: its handler runs under ctx.
func (p Prepared) Enter(ctx context.Context) (Section, *Refusal) {
	if p.guard == nil {
		return Section{ctx: ctx}, nil
	}
	return p.guard.take(ctx, p.req, p.route, p.keys)
}
