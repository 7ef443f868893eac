package core

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/handed"
	"github.com/interlock-go/interlock/core/internal/logs"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/reason"
)

// guardWait is how long a guard waits unless Wait says otherwise. A request
// whose body was not read does not notice that its client left (net/http,
// HTTP/1), so no wait of a guard may be without a bound.
const guardWait = 5 * time.Second

// Guard says which lock a kind of request needs, and how the lock is taken. The
// documents also call a Guard a rule: both words mean the same. [Serialize] and
// [NewGuard] make one; the zero value is not usable.
//
// One Guard serves any number of routes, and the adapters of all protocols. The
// same Guard behind REST and gRPC makes the same keys, so that their requests
// exclude each other. A Guard is immutable and safe for concurrent use.
type Guard struct {
	locker    *Locker
	config    config
	reads     *config // of requests that only read; nil: as the others
	templates []*template
	tracked   bool // an option needs to know the requests
	lines     logs.Lines
}

// Serialize makes the [Guard] that runs requests with the same key one after the
// other, in this process and in all other processes on the same store. The template
// says how the key of a request is made:
//
//	account/{id}                      a route parameter, in gRPC a message field
//	account/{account.id}              a nested message field
//	tenant/{header.X-Tenant}/{id}     a header, in gRPC metadata
//	report/{query.year}               a query parameter
//	user/{ctx.user}                   what a ContextFunc finds in the context
//	field/{msg.header.id}             a field whose name begins like a source
//	account/{id:int}                  one lock for 42, 042 and +42; see Form
//	nightly-report                    no placeholder: all requests share one lock
//
// A value without a [Form] is compared as it came, byte for byte. A handler may
// accept several texts for one resource: it parses a number or a UUID, or its
// database ignores case. Then each text has a lock of its own, and these locks do
// not exclude each other. Give such a placeholder the form :int, :uuid or :lower.
//
// A handler must read the value from the place that the template names. For
// {query.id} that is r.URL.Query().Get("id"). It is not r.FormValue("id"), which
// prefers the id of a form in the body.
//
// The text of a template consists of letters, digits, "-", ".", "_", "~", and of
// slashes between segments. A segment has at most one placeholder. Values are
// percent-escaped as in [Key], so that two different values never give one key.
//
// A value that is missing, empty, malformed, not of its form, or given twice
// refuses the request ([reason.BadKey]). So does a key of more than 512 bytes. A
// template that names a parameter which its route does not have refuses every
// request ([reason.Misconfigured]), and logs an error through [slog.Default], at
// most once a minute.
//
// A client that chooses the key can lock out other clients. Put the guard behind
// authentication, and put the principal into the key ([ContextFunc]).
//
// A handler that reads its body under the lock holds the lock for as long as the
// client takes to send it. Give http.Server a ReadTimeout and the guard a
// [MaxHold], or read the body before the lock ([ReadBody]).
//
// Serialize accepts the options of [Locker.Lock] ([Option]), those that [New] takes
// for all guards ([RequestOption]), and [And], [KeyFunc], [FailOpen] and [ReadBody].
// A guard waits for the lock for at most 5 s unless [Wait] says otherwise.
//
// Serialize panics on a bad template or option, as [net/http.ServeMux] does on a
// bad pattern. [NewGuard] returns the error.
func Serialize(l *Locker, template string, opts ...GuardOption) *Guard {
	g, err := NewGuard(l, template, opts...)
	if err != nil {
		panic(err)
	}
	return g
}

// NewGuard is [Serialize] for templates that are not constants. Where Serialize
// panics, NewGuard returns an error that matches [ErrConfig], with the position in
// the template and with what is accepted. It returns such an error also for a lock that the
// store of the locker never gives ([driver.Limited]). The template may be empty only if the
// options have a [KeyFunc] that makes the keys.
func NewGuard(l *Locker, template string, opts ...GuardOption) (*Guard, error) {
	if l == nil {
		return nil, fmt.Errorf("%w: locker is nil; New makes one", ErrConfig)
	}
	c, err := l.base.forGuard(opts)
	if err != nil {
		return nil, err
	}
	if !c.waitSet {
		c.terms.Wait, c.waitSet = guardWait, true
	}
	g := &Guard{locker: l}
	texts := append([]string{template}, c.guard.more...)
	if template == "" && c.guard.keyFunc != nil {
		texts = texts[1:]
	}
	for _, text := range texts {
		t, err := parseTemplate(text, c.guard.funcs)
		if err != nil {
			return nil, err
		}
		g.templates = append(g.templates, t)
	}
	if c.name == "" {
		c.name = strings.Join(texts, ",")
	}
	if l := c.guard.limit; l != nil && len(g.templates) > l.held {
		return nil, fmt.Errorf("%w: PerPrincipal with %d locks, and the rule needs %d", ErrConfig, l.held, len(g.templates))
	}
	if c.guard.shareReads {
		if c.terms.Kind.Place() {
			return nil, fmt.Errorf("%w: ShareReads with Shared or Permits: it is for a rule under which requests that write run alone", ErrConfig)
		}
		reads := c
		reads.terms.Kind = driver.Shared
		g.reads = &reads
		if err := l.serves(&reads); err != nil {
			return nil, err
		}
	}
	if err := l.serves(&c); err != nil {
		return nil, err
	}
	g.config = c
	g.tracked = c.onLost != nil || l.base.observer != nil || c.guard.check || c.guard.limit != nil
	return g, nil
}

// Name returns the name of the guard: that of the option [Name], else its
// templates, joined with commas.
func (g *Guard) Name() string { return g.config.name }

// Observer returns the observer of the locker of the guard ([WithObserver]), or nil.
func (g *Guard) Observer() observe.Observer { return g.locker.base.observer }

// Placeholders lists what the templates of the guard take from a request. An
// adapter that knows its routes at start-up can check them then. The list does not
// contain what a [KeyFunc] reads.
func (g *Guard) Placeholders() []adapter.Placeholder {
	var all []adapter.Placeholder
	for _, t := range g.templates {
		for _, p := range t.vars {
			all = append(all, p.Placeholder)
		}
	}
	return all
}

// Keys returns the keys that the guard locks for a request: those of its templates
// in their order, then those of its [KeyFunc]. It takes no lock. [ReasonOf] gives
// the reason for its error.
func (g *Guard) Keys(ctx context.Context, req Request) ([]string, error) {
	keys := make([]string, 0, len(g.templates))
	for _, t := range g.templates {
		key, err := t.key(ctx, req)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	if f := g.config.guard.keyFunc; f != nil {
		made, err := f(ctx, handed.Request(req))
		switch {
		case err != nil:
			return nil, fmt.Errorf("interlock: making the key: %w", err)
		case len(made) == 0:
			return nil, fmt.Errorf("%w: KeyFunc returned none", ErrKey)
		}
		for _, key := range made {
			if err := checkKey(key); err != nil {
				return nil, fmt.Errorf("%w, from KeyFunc", err)
			}
		}
		keys = append(keys, made...)
	}
	return keys, nil
}

// Do runs a request under the guard. It makes the keys, takes their locks, calls
// next with the context of the lease, and releases the locks when next is over. It
// releases them however next ends: a panic (http.ErrAbortHandler too) and
// [runtime.Goexit] pass through untouched, after the release. A request without a
// matched route goes through without a lock. An adapter needs only this method;
// [Guard.Enter] is for callers that need to do something between the end of the
// handler and the release.
//
// Do calls next at most once, on the goroutine of its caller. next reports whether
// the client has been answered in a way that cannot be taken back: a header is
// written, or an RPC succeeded.
//
// Do returns nil if the answer is the handler's own. Else it returns what to answer
// instead: next was not called, or (if [Refusal.Ran] is true) the lease was lost
// before the handler had answered. Only the [observe.Observer] and [OnLost] learn of
// a loss after the answer, and only the Observer of an error of the release.
func (g *Guard) Do(ctx context.Context, req Request, next func(ctx context.Context) (answered bool)) (refusal *Refusal) {
	report := outcomeOf(ctx)
	section, refusal := g.enter(ctx, req, report)
	if refusal != nil {
		report.refused(refusal)
		return refusal
	}
	returned := false
	// Deferred, since next may not return. The error is the observer's: the
	// client's request has been carried out.
	defer func() {
		if !returned { // a panic, or runtime.Goexit
			report.ran(section.Lost())
		}
		section.Leave(ctx)
	}()
	answered := next(report.handler(section.Context()))
	returned = true
	if answered {
		section.answered() // a loss has been reported already, and nothing can be taken back
	} else {
		refusal = section.Lost()
	}
	if refusal != nil {
		g.logRefusal(ctx, refusal, "")
	}
	report.ran(refusal)
	return refusal
}

// enter is Enter, which reports a panic of a function that runs before the handler.
func (g *Guard) enter(ctx context.Context, req Request, report outcomeReport) (Section, *Refusal) {
	returned := false
	defer func() {
		if !returned {
			report.refused(&Refusal{Reason: reason.Internal, Rule: g.config.name})
		}
	}()
	section, refusal := g.Enter(ctx, req)
	returned = true
	return section, refusal
}

// Enter is the first half of [Guard.Do], for callers that need to do something
// between the end of the handler and the release. It makes the keys and takes their
// locks, as Do does, and calls no handler. If Enter returns no [Refusal], the
// caller runs the handler under [Section.Context] and must call [Section.Leave],
// however the handler ends.
func (g *Guard) Enter(ctx context.Context, req Request) (Section, *Refusal) {
	prepared, refusal := g.Prepare(ctx, req)
	if refusal != nil {
		return Section{}, refusal
	}
	return prepared.Enter(ctx)
}

// take takes the locks of keys.
func (g *Guard) take(ctx context.Context, req Request, route string, keys []string) (Section, *Refusal) {
	var v *guarded
	if g.tracked {
		v = &guarded{route: route, check: g.config.guard.check}
	}
	if l := g.config.guard.limit; l != nil {
		a, err := l.admit(ctx, req, g.locker, keys)
		if err != nil {
			return Section{}, g.rejected(ctx, req, err)
		}
		v.principal, v.admitted = Hashed(a.principal), a
		// Whatever keeps the request from its lock, a panic of an observer's
		// too, it has no share then.
		defer func() {
			if v.lease == nil {
				a.leave()
			}
		}()
	}
	inner := ctx
	if v != nil {
		v.Context, inner = ctx, v
	}
	lease, err := g.locker.lockWith(inner, keys, g.configFor(req))
	if err != nil {
		refusal := g.refusal(ctx, err)
		refusal.keys = keys
		if refusal.Reason == reason.Unavailable && g.config.guard.failOpen && ctx.Err() == nil {
			g.bypassed(ctx, req, keys, err)
			return Section{ctx: &guarded{Context: ctx, bypassed: true}}, nil
		}
		wrong := "interlock: the rule cannot take its lock and refuses requests"
		if errors.Is(err, ErrUpgrade) {
			wrong = "interlock: the rule wants a lock that its requests hold in another way already, and refuses them"
		}
		g.logRefusal(ctx, refusal, wrong)
		return Section{}, refusal
	}
	if v != nil {
		v.lease = lease
		if v.admitted != nil {
			v.admitted.granted()
		}
	}
	return Section{guard: g, lease: lease, ctx: lease.Context(), request: v}, nil
}

// configFor is how the locks of a request are taken.
func (g *Guard) configFor(req Request) *config {
	if g.reads != nil {
		if r, ok := req.(adapter.Reader); ok && r.ReadsOnly() {
			return g.reads
		}
	}
	return &g.config
}

// refusal is the answer to a request whose handler did not run.
func (g *Guard) refusal(ctx context.Context, err error) *Refusal {
	return &Refusal{Reason: ReasonOf(ctx, err), Rule: g.config.name, Err: err}
}

// observe starts an observation for what happens outside an acquisition.
func (g *Guard) observe(ctx context.Context, req Request, keys []string) observe.Observation {
	if g.locker.base.observer == nil {
		return observe.Observation{}
	}
	_, o := g.locker.base.observer.Start(ctx, observe.Operation{
		Rule: g.config.name, Kind: kinds[g.configFor(req).terms.Kind], Keys: slices.Clone(keys), Wait: g.config.terms.Wait, Unlocked: true,
	})
	return o
}

// rejected reports that a request is refused before its lock was
// asked for: no key could be made of it, or it is over a limit. The client's
// mistakes are the observer's to count; the server's are logged, since
// the client is not told what is wrong. A principal that is not found is most
// often the server's mistake, though the client gets a 400.
func (g *Guard) rejected(ctx context.Context, req Request, err error) *Refusal {
	if o := g.observe(ctx, req, nil); o.Rejected != nil {
		o.Rejected(err)
	}
	refusal := g.refusal(ctx, err)
	if errors.Is(err, errNothingFound) {
		g.lines.Log(ctx, slog.LevelWarn, "interlock: the rule refuses requests in which a function finds nothing: "+
			"authentication goes in front of the rule, and core.Request.Value finds what gin and echo keep by c.Set",
			g.config.name, err)
	}
	g.logRefusal(ctx, refusal, "interlock: the rule cannot make a key, or find the principal, of its requests and refuses them")
	return refusal
}

// logRefusal logs what the operator of the server has to know, and the client is not told:
// each refusal that is an error of the server (a status of 500 or 503) has a line. wrong is
// the text where the rule itself, or a function that it calls, is wrong.
func (g *Guard) logRefusal(ctx context.Context, r *Refusal, wrong string) {
	level, text := slog.LevelWarn, ""
	switch r.Reason {
	case reason.Unavailable, reason.NotReplicated:
		text = "interlock: the lock store fails and the rule refuses requests"
	case reason.Closing:
		text = "interlock: the locker is closed and the rule refuses requests: shut the server down before Locker.Close"
	case reason.Lost, reason.MaxHold:
		text = "interlock: a lease of the rule was lost before the request was answered, and the client gets an error"
	case reason.KeyOccupied:
		level, text = slog.LevelError, "interlock: the key of a lock has a value that is no lock, and the rule refuses requests"
	case reason.Misconfigured, reason.Internal:
		level, text = slog.LevelError, wrong
	default:
		return
	}
	g.lines.Log(ctx, level, text, g.config.name, r.cause())
}

// bypassed reports that a handler runs without its lock.
func (g *Guard) bypassed(ctx context.Context, req Request, keys []string, err error) {
	if o := g.observe(ctx, req, keys); o.Bypassed != nil {
		o.Bypassed(err)
	}
	g.lines.Log(ctx, slog.LevelWarn, "interlock: the lock store is unavailable and the rule fails open: handlers run without their lock",
		g.config.name, observe.RootCause(err)) // what wraps it names the key
}
