package idempotency

import (
	"context"
	"fmt"
	"net/textproto"
	"time"

	"github.com/interlock-go/interlock/core"
)

// Option changes an Engine. New and Engine.With take the same options, and what
// With says overrides what New said. Each option states its default.
type Option func(*config)

// config is the sum of the options. It is immutable once made.
type config struct {
	err  error // the first bad option
	name string

	lease     time.Duration
	retention time.Duration
	tombstone time.Duration
	maxHold   time.Duration
	wait      time.Duration

	maxWaiters int

	maxRequest  int64
	maxResponse int64
	backlog     int64

	strict   bool
	storeAll bool

	releaseInvalid bool
	failOpen       bool
	optional       bool
	global         bool
	scope          core.RequestFunc
	headers        map[string]bool // allow-list; nil: the default
	sealing        *sealing        // nil: responses are stored as they are

	fingerprint func(context.Context, core.Request, *Parts) error // nil: the default

	guard    *core.Guard
	observer core.Observer
}

const (
	minLease = 10 * time.Millisecond

	defaultLease     = 30 * time.Second
	defaultRetention = 24 * time.Hour
	defaultMaxHold   = 5 * time.Minute
	defaultLimit     = 1 << 20
	defaultBacklog   = 64 << 20
)

func defaults() config {
	return config{
		name: "idempotency", lease: defaultLease, retention: defaultRetention, maxHold: defaultMaxHold,
		maxRequest: defaultLimit, maxResponse: defaultLimit, backlog: defaultBacklog,
		maxWaiters: defaultWaiters,
	}
}

// with returns c changed by the options, or the first error among them.
func (c config) with(opts []Option) (config, error) {
	for _, o := range opts {
		if o != nil {
			o(&c)
		}
	}
	switch {
	case c.err != nil:
		return c, c.err
	case c.scope == nil && !c.global:
		return c, fmt.Errorf("%w: no Scope: without one, two clients that choose the same key get each other's responses; "+
			"Global says that keys are unique by themselves", core.ErrConfig)
	case c.retention < c.lease:
		return c, fmt.Errorf("%w: Retention %v is less than Lease %v", core.ErrConfig, c.retention, c.lease)
	}
	return c, nil
}

func (c *config) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: %s", core.ErrConfig, fmt.Sprintf(format, args...))
	}
}

// Scope says whose key it is, so that two clients that choose the same key are
// independent: f returns the principal, as authentication in front has left it.
// [core.FromContext] is such a function; core.RequestFunc says what f may return,
// and how it finds what gin and echo keep in their own contexts. The value is
// stored as a hash only. A client without a principal is refused with
// core.ReasonNoPrincipal. Required, unless Global is given.
//
//	idempotency.New(store, idempotency.Scope(core.FromContext("user")))
func Scope(f core.RequestFunc) Option {
	return func(c *config) {
		if f == nil {
			c.fail("Scope(nil): must not be nil; Global does without")
			return
		}
		c.scope, c.global = f, false
	}
}

// Global says that all clients share one space of keys: a client that learns or
// guesses another's key, and sends the same request, gets the other's response.
// Default: off; a Scope is required.
func Global() Option {
	return func(c *config) { c.scope, c.global = nil, true }
}

// Name names the endpoint for observers: a label of low cardinality, never a
// key. Default: "idempotency".
func Name(s string) Option {
	return func(c *config) { c.name = s }
}

// Lease is how long a claim outlives a process that died, before another may
// take over: at least 10 ms, default 30 s. It is renewed each time a third of it
// has passed, for as long as the handler runs.
func Lease(d time.Duration) Option {
	return func(c *config) {
		if d < minLease {
			c.fail("Lease(%v): must be at least %v", d, minLease)
			return
		}
		c.lease = d
	}
}

// Retention is how long a response is kept, from the time it was stored. A
// replay does not change it. Default 24 h; at least the lease.
func Retention(d time.Duration) Option {
	return func(c *config) {
		if d <= 0 {
			c.fail("Retention(%v): must be positive", d)
			return
		}
		c.retention = d
	}
}

// Tombstone is for how long after its retention a key is remembered as used, so
// that a request that comes then is refused (core.ReasonKeyExpired) and not
// carried out a second time. It costs a small key in the store for each.
// Default 0: the key may be used again.
func Tombstone(d time.Duration) Option {
	return func(c *config) {
		if d < 0 {
			c.fail("Tombstone(%v): must not be negative", d)
			return
		}
		c.tombstone = d
	}
}

// MaxHold bounds how long a handler is waited for, which otherwise nothing does:
// its context does not end with the client. After d the context ends with cause
// core.ErrMaxHold and the claim is no longer renewed. Default 5 min.
func MaxHold(d time.Duration) Option {
	return func(c *config) {
		if d <= 0 {
			c.fail("MaxHold(%v): must be positive", d)
			return
		}
		c.maxHold = d
	}
}

// Strict never carries out a request a second time that may have had an effect
// the first time: every request counts as marked (MarkEffect) from its start. A
// request whose process died is answered with core.ReasonOutcomeUnknown from
// then on, and a failure of the handler is stored. Default: off; such a request
// is carried out again.
func Strict() Option {
	return func(c *config) { c.strict = true }
}

// StoreAll stores every answer of the handler: failures, which otherwise release
// the claim, and refusals for the time being (401, 408, 409, 425, 429) too.
// Default: off.
func StoreAll() Option {
	return func(c *config) { c.storeAll = true }
}

// WaitReplay lets a duplicate of a request in flight wait for up to d, and then
// replays the response. At the end of d, or of the duplicate's own deadline, it is
// refused (core.ReasonInFlight). MaxWaiters bounds how many wait. Default 0: it is
// refused at once.
func WaitReplay(d time.Duration) Option {
	return func(c *config) {
		if d < 0 {
			c.fail("WaitReplay(%v): must not be negative", d)
			return
		}
		c.wait = d
	}
}

// MaxRequest is the length of the longest body that is read, in bytes. A longer
// one is refused (core.ReasonBodyTooLarge). Default 1 MiB.
func MaxRequest(n int64) Option {
	return func(c *config) {
		if n < 0 {
			c.fail("MaxRequest(%d): must not be negative", n)
			return
		}
		c.maxRequest = n
	}
}

// MaxResponse is the length of the longest response that is stored, in bytes. A
// longer one is sent in full, and a duplicate refused
// (core.ReasonResponseUnavailable). Default 1 MiB.
func MaxResponse(n int64) Option {
	return func(c *config) {
		if n < 0 {
			c.fail("MaxResponse(%d): must not be negative", n)
			return
		}
		c.maxResponse = n
	}
}

// Backlog bounds the memory for responses that were sent while the store was
// unavailable and wait to be stored, in bytes. Beyond it the fact is kept and
// the response is not. Default 64 MiB. For New only; With ignores it.
func Backlog(n int64) Option {
	return func(c *config) {
		if n < 0 {
			c.fail("Backlog(%d): must not be negative", n)
			return
		}
		c.backlog = n
	}
}

// FailOpen lets requests through without a record when the store cannot be
// reached: duplicates are then carried out again. Each is counted
// (core.Observation.Bypassed), and logged through slog.Default at most once a
// second. It is for endpoints where idempotency saves effort, never for those
// that move money. Default: off; they are refused (core.ReasonNoRecord). A
// damaged record is always refused.
func FailOpen() Option {
	return func(c *config) { c.failOpen = true }
}

// Optional lets requests without a key through, as if there were no
// idempotency. A malformed key is refused all the same. Default: off; they are
// refused (core.ReasonKeyMissing).
func Optional() Option {
	return func(c *config) { c.optional = true }
}

// ReplayHeaders stores these header fields only. Default: all except those that
// belong to one response alone: Set-Cookie, Date, hop-by-hop fields and those
// that Connection names, ids of traces and requests, rate limits. With either,
// a replay has a Content-Length, that of its own body, if the first answer had.
func ReplayHeaders(names ...string) Option {
	return func(c *config) {
		c.headers = make(map[string]bool, len(names))
		for _, name := range names {
			c.headers[textproto.CanonicalMIMEHeaderKey(name)] = true
		}
	}
}

// Under runs the handler under the lock of a guard: first the claim, then the
// lock, then the handler; then the response is stored and the lock released, in
// one round trip if both are in one store. A replay takes no lock. What the
// guard refuses is not stored. Default: no lock.
func Under(guard *core.Guard) Option {
	return func(c *config) { c.guard = guard }
}

// WithObserver sets who is told what happens to requests. Default: nobody.
func WithObserver(o core.Observer) Option {
	return func(c *config) { c.observer = o }
}
