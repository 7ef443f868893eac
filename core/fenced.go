package core

import (
	"context"
	"errors"
	"fmt"

	"github.com/interlock-go/interlock/core/internal/carrier"
	"github.com/interlock-go/interlock/core/internal/logs"
)

// fence is the part of a [Guard] that takes no lock, and claims the locks of the caller.
type fence struct {
	claim    func(context.Context, []Fence) error
	optional bool // AllowUnfenced
}

// Fenced makes the [Guard] of a service that trusts its callers, all of them services inside
// (see [FencesHeader]), and that owns a resource which they lock. The guard takes no lock. It
// refuses the requests of callers that have lost their lock to another holder, and claims the
// resource for the others before the handler runs:
//
//	debit := core.Fenced("account/{id:int}", fencing.Table{}.Fence(db))
//	mux.Handle("POST /accounts/{id}/debit", httplock.Guard(debit)(handler))
//
// The template makes the key from the request, as in [Serialize], and must make the key that
// the callers lock. Of the tokens in the request the guard takes only the token of that key: a
// token of another lock does not count. All callers take their locks in one store under one
// prefix, or their tokens cannot be compared. A client sends its tokens with the option
// SendFences of httplock.Transport or of grpclock.UnaryClientRetry. It passes on the tokens of its
// own callers, too, also callers with other keys; a service in between without such a rule has [Relay].
//
// claim compares the tokens with the greatest tokens that the resource has seen, and raises
// these. It gets the fences of one request, at least one, sorted by key, and must be safe for
// concurrent use. fencing.Table.Fence makes such a function. Its error refuses the request:
//
//   - An error that matches [ErrLost], as fencing.ErrStale does: the token is outdated
//     ([reason.StaleToken]).
//   - [ErrUnavailable]: the resource does not answer ([reason.Unavailable]).
//   - Any other error is the server's ([reason.Internal]).
//
// A request without the token of a key is refused ([reason.TokenMissing], [AllowUnfenced]), and
// so is a malformed field ([reason.TokenMalformed]). A shared lock and a permit have no token
// that could be compared.
//
// Another caller can get the lock while the handler works. A handler that writes claims again
// in the transaction of its writes, as fencing.InTx and pgstore.Tx do with the tokens of its
// context ([Fences]).
//
// Of the options [And], [KeyFunc], [ContextFunc], [Name], [ReadBody] and [AllowUnfenced] have a
// meaning. Fenced panics on a bad template, on any other option, and if claim is nil.
func Fenced(template string, claim func(ctx context.Context, fences []Fence) error, opts ...GuardOption) *Guard {
	g, err := newFenced(template, claim, opts)
	if err != nil {
		panic(err)
	}
	return g
}

// AllowUnfenced lets requests through that have no token of a key, for callers that take no
// lock. Nothing refuses such a request when it is outdated; in its handler [Fences] returns
// nothing for the key. Default: a request without a token is refused. For [Fenced] alone.
func AllowUnfenced() GuardOption {
	return guardOption(func(c *config) { c.guard.unfenced = true })
}

func newFenced(template string, claim func(context.Context, []Fence) error, opts []GuardOption) (*Guard, error) {
	base := defaultConfig()
	c, err := base.forGuard(opts)
	if err != nil {
		return nil, err
	}
	plain, _ := base.forGuard(nil)
	switch o := &c.guard; {
	case claim == nil:
		return nil, fmt.Errorf("%w: Fenced with a nil claim; fencing.Table.Fence makes one", ErrConfig)
	case c.terms != plain.terms, c.waitSet, c.onLost != nil, o.failOpen, o.check, o.shareReads, o.limit != nil, o.answerFirst:
		return nil, fmt.Errorf("%w: Fenced takes no lock: accepted options are And, KeyFunc, ContextFunc, Name, ReadBody and AllowUnfenced", ErrConfig)
	}
	g := &Guard{fence: &fence{claim, c.guard.unfenced}, lines: logs.Requests{Log: new(logs.Log)}}
	if err := g.parse(template, &c); err != nil {
		return nil, err
	}
	g.config = c
	return g, nil
}

// claim claims the fences of a request in place of locks.
func (g *Guard) claim(ctx context.Context, p Prepared) (Section, *Refusal) {
	fences, sent, err := g.fence.of(p)
	if err == nil && len(fences) > 0 {
		err = g.fence.claim(ctx, fences)
		// The end of ctx can be a loss as well: a lock of this service was lost.
		if errors.Is(err, ErrLost) && ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", errStaleToken, err)
		}
	}
	if err != nil {
		refusal := g.refusal(ctx, err)
		refusal.keys = p.keys
		g.logRefusal(ctx, refusal, "interlock: the rule cannot claim the fence of its requests and refuses them")
		return Section{}, refusal
	}
	ctx = withRelayed(ctx, sent)
	if len(fences) == 0 {
		return Section{ctx: ctx}, nil
	}
	return Section{ctx: context.WithValue(ctx, carrier.Fences, append(fences, claimedFences(ctx)...))}, nil
}

// of returns the fences of a request that belong to its keys, and all that it came with.
func (f *fence) of(p Prepared) (fences []Fence, sent map[string]int64, err error) {
	sent, err = parseFences(p.req.Header(FencesHeader))
	if err != nil {
		return nil, nil, err
	}
	for _, key := range p.keys {
		switch token, ok := sent[key]; {
		case ok:
			fences = append(fences, Fence{key, token})
		case !f.optional:
			return nil, nil, fmt.Errorf("%w in %s for a key of the request", errTokenMissing, FencesHeader)
		}
	}
	return sortFences(fences), sent, nil
}
