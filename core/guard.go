package core

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/internal/logs"
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
	templates []*template
	visits    bool // an option needs to know the requests
	warnings  logs.Throttle
}

// guardConfig holds the options that only a guard has.
type guardConfig struct {
	more      []string
	keyFunc   func(context.Context, Request) ([]string, error)
	funcs     []namedFunc
	failOpen  bool
	readBody  bool // before the lock, at most bodyLimit bytes
	bodyLimit int64
	check     bool
	limit     *limit
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
// refuses the request ([ReasonBadKey]). So does a key of more than 512 bytes. A
// template that names a parameter which its route does not have refuses every
// request ([ReasonMisconfigured]), and logs an error through [slog.Default], at
// most once a second.
//
// A client that chooses the key can lock out other clients. Put the guard behind
// authentication, and put the principal into the key ([ContextFunc]).
//
// A handler that reads its body under the lock holds the lock for as long as the
// client takes to send it. Give http.Server a ReadTimeout and the guard a
// [MaxHold], or read the body before the lock ([ReadBody]).
//
// Serialize accepts the options of [Locker.Lock], and [And], [KeyFunc],
// [ContextFunc], [FailOpen], [CheckAnswer], [PerPrincipal] and [ReadBody]. A guard
// waits for the lock for at most 5 s unless [Wait] says otherwise.
//
// Serialize panics on a bad template or option, as [net/http.ServeMux] does on a
// bad pattern. [NewGuard] returns the error.
func Serialize(l *Locker, template string, opts ...Option) *Guard {
	g, err := NewGuard(l, template, opts...)
	if err != nil {
		panic(err)
	}
	return g
}

// NewGuard is [Serialize] for templates that are not constants. Where Serialize
// panics, NewGuard returns an error that matches [ErrConfig], with the position in
// the template and with what is accepted. The template may be empty only if the
// options have a [KeyFunc] that makes the keys.
func NewGuard(l *Locker, template string, opts ...Option) (*Guard, error) {
	if l == nil {
		return nil, fmt.Errorf("%w: locker is nil; New makes one", ErrConfig)
	}
	c, err := l.base.with(scopeRule, opts)
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
	g.config = c
	g.visits = c.onLost != nil || l.base.observer != nil || c.guard.check || c.guard.limit != nil
	return g, nil
}

// And adds a template to a guard: a request then takes the locks of all its keys or
// none. A transfer locks both of its accounts with
//
//	Serialize(locker, "account/{from}", And("account/{to}"))
//
// A transfer in the opposite direction does not deadlock with it, because keys are
// taken in sorted order, each once ([Locker.LockAll]). For a guard only.
func And(template string) Option {
	return func(c *config) {
		if c.ruleOnly("And") {
			c.guard.more = append(c.guard.more, template)
		}
	}
}

// KeyFunc makes the keys of a guard in code, in addition to the keys of its
// templates. The template given to [Serialize] may then be empty; give the guard a
// [Name]. The guard uses the keys as they are: build them with [Key]. f runs for
// many requests at the same time.
//
// An error of f that matches [ErrKey] refuses the request as a mistake of the
// client. Any other error is the server's ([ReasonInternal]); the rendering option
// of the adapter sees it in [Refusal.Err]. If f returns no key, that is ErrKey: a
// KeyFunc cannot ask for no lock. For a guard only.
func KeyFunc(f func(ctx context.Context, req Request) ([]string, error)) Option {
	return func(c *config) {
		switch {
		case !c.ruleOnly("KeyFunc"):
		case f == nil:
			c.fail("KeyFunc(nil): must not be nil")
		default:
			c.guard.keyFunc = f
		}
	}
}

// ContextFunc registers f for {ctx.name} in templates. Use it for a value that
// earlier middleware has put into the context, such as the principal. [RequestFunc]
// says what f may return, and where f finds what gin and echo keep in their own
// contexts. A name has letters, digits, "_", "-" and dots. Of several functions
// with one name the last one counts. For [New], where it serves all guards, or for
// a guard.
func ContextFunc(name string, f RequestFunc) Option {
	return func(c *config) {
		bad := func(r rune) bool { return r != '.' && !nameRune(r) }
		switch {
		case c.scope == scopeCall:
			c.fail("ContextFunc is an option of New and of a rule only")
		case name == "" || strings.ContainsFunc(name, bad):
			c.fail("ContextFunc(%q): accepted in a name are letters, digits, _, - and dots between them", name)
		case f == nil:
			c.fail("ContextFunc(%q, nil): must not be nil", name)
		default:
			// A rule must not append into the array that the locker's other
			// rules share.
			c.guard.funcs = append(c.guard.funcs[:len(c.guard.funcs):len(c.guard.funcs)], namedFunc{name, f})
		}
	}
}

// FailOpen lets requests through without their lock when the store cannot be
// reached ([ReasonUnavailable]). Then nothing excludes other requests: use it where
// a lock saves effort, never where it protects money.
//
// Each such request is counted ([Observation.Bypassed]). A warning is logged through
// [slog.Default], at most once a second for a guard. The handler sees it from
// [LeaseFromContext], which then has no lease of the guard. Default: off; such
// requests are refused. For a guard only.
func FailOpen() Option {
	return func(c *config) {
		if c.ruleOnly("FailOpen") {
			c.guard.failOpen = true
		}
	}
}

// CheckAnswer asks the store whether the lock is still held, just before the answer
// of a success leaves (in HTTP a status below 400, in gRPC OK). If the lock is not
// held, the client gets the refusal for a lost lease instead ([ReasonLost]).
// Without this option the client gets that refusal only if the handler gave no
// answer. A handler that writes to a database uses [Commit] for the same check on
// its transaction.
//
// CheckAnswer costs one round trip for each request. It does not check the answers
// of failures. Of an answer in several parts it holds back only the beginning, of a
// stream in gRPC only the end. If the store cannot be asked, the answer leaves
// unconfirmed as long as the lease is valid by this process's clock.
//
// Default: off; a success that a handler answers after the loss is sent, and
// [OnLost] and the [Observer] are told of the loss. For [New], where it serves all
// guards, or for a guard.
func CheckAnswer() Option {
	return func(c *config) {
		if c.scope == scopeCall {
			c.fail("CheckAnswer is an option of New and of a rule only")
			return
		}
		c.guard.check = true
	}
}

// ruleOnly reports whether the option may be given here, and notes the error if
// not.
func (c *config) ruleOnly(name string) bool {
	if c.scope != scopeRule {
		c.fail("%s is an option of a rule (Serialize, NewGuard) only", name)
		return false
	}
	return true
}

// Name returns the name of the guard: that of the option [Name], else its
// templates, joined with commas.
func (g *Guard) Name() string { return g.config.name }

// Placeholders lists what the templates of the guard take from a request. An
// adapter that knows its routes at start-up can check them then. The list does not
// contain what a [KeyFunc] reads.
func (g *Guard) Placeholders() []Placeholder {
	var all []Placeholder
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
		made, err := f(ctx, req)
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
// before the handler had answered. Only the [Observer] and [OnLost] learn of a loss
// after the answer, and only the Observer of an error of the release.
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
	report.ran(refusal)
	return refusal
}

// enter is Enter, which reports a panic of a function that runs before the handler.
func (g *Guard) enter(ctx context.Context, req Request, report outcome) (Section, *Refusal) {
	returned := false
	defer func() {
		if !returned {
			report.refused(&Refusal{Reason: ReasonInternal, Rule: g.config.name})
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
	var v *visit
	if g.visits {
		v = &visit{route: route, check: g.config.guard.check}
	}
	if l := g.config.guard.limit; l != nil {
		a, err := l.admit(ctx, req, g.locker, keys)
		if err != nil {
			return Section{}, g.rejected(ctx, err)
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
	lease, err := g.locker.lockWith(inner, keys, &g.config)
	if err != nil {
		refusal := g.refusal(ctx, err)
		refusal.keys = keys
		if refusal.Reason == ReasonUnavailable && g.config.guard.failOpen && ctx.Err() == nil {
			g.bypassed(ctx, keys, err)
			return Section{ctx: &visit{Context: ctx, bypassed: true}}, nil
		}
		return Section{}, refusal
	}
	if v != nil {
		v.lease = lease
		if v.admitted != nil {
			v.admitted.granted()
		}
	}
	return Section{guard: g, lease: lease, ctx: lease.Context(), visit: v}, nil
}

// Section is what a handler runs in after [Guard.Enter]: under the lock of the
// guard, or without a lock where the guard lets the request through. [Guard.Enter]
// and [NewSection] make one; the zero value has no context.
type Section struct {
	guard *Guard
	lease *Lease // nil: without a lock
	ctx   context.Context
	visit *visit // nil: no option needs it
}

// NewSection returns a Section without a lock, whose handler runs under ctx.
func NewSection(ctx context.Context) Section { return Section{ctx: ctx} }

// Context returns the context of the handler. It is the context of the lease.
// Without a lock it derives from the context given to [Guard.Enter].
func (s Section) Context() context.Context { return s.ctx }

// BeginAnswer is the function [BeginAnswer] for this section.
func (s Section) BeginAnswer(success bool) bool { return s.visit == nil || s.visit.begin(success) }

// answered notes that the client has its answer, from the handler or from
// middleware.
func (s Section) answered() {
	if s.visit != nil {
		s.visit.answered.Store(true)
	}
}

// Leave releases the lock. It uses only the values of ctx. Errors go to the
// [Observer]. Leave may be called more than once; later calls do nothing.
func (s Section) Leave(ctx context.Context) {
	if s.lease == nil {
		return
	}
	if s.visit != nil && s.visit.admitted != nil {
		defer s.visit.admitted.leave() // not before the lock has gone
	}
	_ = s.lease.Release(ctx)
}

// Lost returns nil while the lock can be trusted. After a loss it returns the
// [Refusal] for a client that was not answered before. Call it before
// [Section.Leave].
func (s Section) Lost() *Refusal {
	if s.lease == nil {
		return nil
	}
	// Read before the release, which would make it ErrReleased; that is also
	// what a handler leaves that released its lease itself, early, by intent.
	lost := s.lease.Err()
	if v := s.visit; v != nil && v.check && !v.answered.Load() {
		lost = v.confirm() // an answer may follow: of net/http's for one
	}
	if lost == nil || errors.Is(lost, ErrReleased) {
		return nil
	}
	refusal := &Refusal{Reason: ReasonLost, Ran: true, Rule: s.guard.config.name, Err: lost, keys: s.lease.Keys()}
	if errors.Is(lost, ErrMaxHold) {
		refusal.Reason = ReasonMaxHold
	}
	return refusal
}

// refusal is the answer to a request whose handler did not run.
func (g *Guard) refusal(ctx context.Context, err error) *Refusal {
	return &Refusal{Reason: ReasonOf(ctx, err), Rule: g.config.name, Err: err}
}

// observe starts an observation for what happens outside an acquisition.
func (g *Guard) observe(ctx context.Context, keys []string) Observation {
	if g.locker.base.observer == nil {
		return Observation{}
	}
	_, o := g.locker.base.observer.Start(ctx, Operation{Rule: g.config.name, Keys: keys, Wait: g.config.terms.Wait, Unlocked: true})
	return o
}

// rejected reports that a request is refused before its lock was
// asked for: no key could be made of it, or it is over a limit. The client's
// mistakes are the observer's to count; the server's are logged, since
// the client is not told what is wrong. A principal that is not found is most
// often the server's mistake, though the client gets a 400.
func (g *Guard) rejected(ctx context.Context, err error) *Refusal {
	if o := g.observe(ctx, nil); o.Rejected != nil {
		o.Rejected(err)
	}
	refusal := g.refusal(ctx, err)
	switch {
	case errors.Is(err, errNothingFound):
		if n := g.warnings.Count(time.Now()); n > 0 {
			slog.WarnContext(ctx, "interlock: the rule refuses requests in which a function finds nothing: "+
				"authentication goes in front of the rule, and core.Request.Value finds what gin and echo keep by c.Set",
				"rule", g.config.name, "requests", n, "error", err)
		}
	case refusal.Reason == ReasonMisconfigured || refusal.Reason == ReasonInternal:
		if n := g.warnings.Count(time.Now()); n > 0 {
			slog.ErrorContext(ctx, "interlock: the rule cannot make a key, or find the principal, of its requests and refuses them",
				"rule", g.config.name, "requests", n, "error", err)
		}
	}
	return refusal
}

// bypassed reports that a handler runs without its lock.
func (g *Guard) bypassed(ctx context.Context, keys []string, err error) {
	if o := g.observe(ctx, keys); o.Bypassed != nil {
		o.Bypassed(err)
	}
	if n := g.warnings.Count(time.Now()); n > 0 {
		slog.WarnContext(ctx, "interlock: the lock store is unavailable and the rule fails open: handlers run without their lock",
			"rule", g.config.name, "requests", n, "error", rootCause(err))
	}
}

// rootCause descends to the innermost error. What wraps it names the key, which
// identifies a user and is not for a log that leaves the machine.
func rootCause(err error) error {
	for {
		var inner error
		switch e := err.(type) { //nolint:errorlint // this walks the tree itself
		case interface{ Unwrap() error }:
			inner = e.Unwrap()
		case interface{ Unwrap() []error }:
			if all := e.Unwrap(); len(all) > 0 {
				inner = all[len(all)-1]
			}
		}
		if inner == nil {
			return err
		}
		err = inner
	}
}
