package core

import (
	"context"

	"github.com/interlock-go/interlock/core/internal/logs"
)

// Relay returns the [Guard] of a service in between: a service inside that is called under a lock,
// calls further services, and has no rule for the lock. It takes no lock and needs no key. Its
// handlers run under a context from which the clients of this module pass on which locks the
// callers hold ([HeldFor]) and, where they are asked to, the fencing tokens ([FencesFor]):
//
//	mux.Handle("/", httplock.Guard(core.Relay())(handler))
//
// Other guards and idempotent endpoints pass on the first, and a rule of [Fenced] both. Tokens must
// come from inside only: Relay is not for a service that clients outside can reach ([FencesHeader]).
// A malformed field of tokens refuses the request ([reason.TokenMalformed]).
func Relay() *Guard {
	g := &Guard{relay: true, lines: logs.Requests{Log: new(logs.Log)}, config: defaultConfig()}
	g.config.name = "relay"
	return g
}

// passOn is Enter for a rule of [Relay].
func (g *Guard) passOn(ctx context.Context, p Prepared) (Section, *Refusal) {
	sent, err := parseFences(p.req.Header(FencesHeader))
	if err != nil {
		return Section{}, g.refusal(ctx, err)
	}
	return Section{ctx: withRelayed(ctx, sent)}, nil
}
