package core

import (
	"fmt"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/logs"
	"github.com/interlock-go/interlock/core/observe"
)

// guardWait is the wait of a guard without the option Wait. As long as its body
// is unread, a request does not notice that its client left (net/http, HTTP/1). So no
// wait of a guard may be without a bound.
const guardWait = 5 * time.Second

// Guard is a rule: it says which lock a kind of request needs, and how the lock is taken.
// Documents, logs and metrics speak of the rule. [Serialize] and [NewGuard] make a Guard;
// the zero value is not usable.
//
// One Guard serves any number of routes, and the adapters of all protocols. The same
// Guard for REST and gRPC makes the same keys, so that their requests exclude each other.
// A Guard is immutable and safe for concurrent use.
type Guard struct {
	locker    *Locker // nil for a rule that takes no lock
	fence     *fence  // of a rule that takes no lock
	relay     bool    // of Relay
	config    config
	reads     *config // of requests that only read; nil: as the others
	templates []*template
	tracked   bool // an option needs to know the requests
	lines     logs.Requests
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
//	field/{msg.header.id}             a field with a name that begins like a source
//	account/{id:int}                  one lock for 42, 042 and +42; see Form
//	nightly-report                    no placeholder: all requests share one lock
//
// A value without a [Form] is compared as it came, byte for byte. A handler may
// accept several texts for one resource: it parses a number or a UUID, or its
// database ignores case. Then each text is a separate lock, and these locks do not
// exclude each other. Give such a placeholder the form :int, :uuid or :lower.
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
// A client that chooses the key can lock out other clients. Authenticate before the
// guard, and put the principal into the key ([ContextFunc]).
//
// A handler that reads its body under the lock holds the lock for as long as the
// client takes to send it. Give http.Server a ReadTimeout and the guard a
// [MaxHold], or read the body before the lock ([ReadBody]).
//
// Serialize accepts the options of [Locker.Lock] ([Option]), the options for all guards
// of [New] ([RequestOption]), and [And], [KeyFunc], [FailOpen], [ReadBody],
// [ShareReads] and [AnswerFirst]. A guard waits for the lock for at most 5 s unless
// [Wait] says otherwise.
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
// panics, NewGuard returns an error that matches [ErrConfig], with the position in the
// template and the accepted syntax. It returns such an error also for a lock that the store
// of the locker never gives ([driver.Limited]). The template may be empty only if the
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
	if c.guard.answerFirst && c.terms.Wait == 0 {
		return nil, fmt.Errorf("%w: AnswerFirst with Wait(0): a client that asks again at once would be refused for the lock of its own request; "+
			"let the rule wait", ErrConfig)
	}
	g := &Guard{locker: l, lines: logs.Requests{Log: &l.calls.log}}
	if c.guard.unfenced {
		return nil, fmt.Errorf("%w: AllowUnfenced is for Fenced; a rule that takes a lock asks for no token", ErrConfig)
	}
	if err := g.parse(template, &c); err != nil {
		return nil, err
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
	if g.tracked = c.onLost != nil || l.base.observer != nil || c.guard.check || c.guard.limit != nil; g.tracked {
		tracking.Store(true)
	}
	return g, nil
}

// parse makes the templates of the guard, and its name unless the options have one.
func (g *Guard) parse(template string, c *config) error {
	texts := append([]string{template}, c.guard.more...)
	if template == "" && c.guard.keyFunc != nil {
		texts = texts[1:]
	}
	for _, text := range texts {
		t, err := parseTemplate(text, c.guard.funcs)
		if err != nil {
			return err
		}
		g.templates = append(g.templates, t)
	}
	if c.name == "" {
		c.name = strings.Join(texts, ",")
	}
	return nil
}

// Name returns the name of the guard: the name in the option [Name], else its
// templates, joined with commas.
func (g *Guard) Name() string { return g.config.name }

// Waits reports whether a request may wait for its lock ([Wait]). Consumers that must not wait
// refuse such a rule at registration.
func (g *Guard) Waits() bool { return g.locker != nil && g.config.terms.Wait != 0 }

// Observer returns the observer of the locker of the guard ([WithObserver]), or nil. A rule of
// [Fenced] has no locker.
func (g *Guard) Observer() observe.Observer {
	if g.locker == nil {
		return nil
	}
	return g.locker.base.observer
}

// Placeholders lists the placeholders in the templates of the guard. An adapter that
// knows its routes at start-up can check them then. The list says nothing about the
// values that a [KeyFunc] reads.
func (g *Guard) Placeholders() []adapter.Placeholder {
	var all []adapter.Placeholder
	for _, t := range g.templates {
		for _, p := range t.vars {
			all = append(all, p.Placeholder)
		}
	}
	return all
}
