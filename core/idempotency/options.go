package idempotency

import (
	"context"
	"fmt"
	"net/textproto"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/reason"
)

// Option changes an [Engine]. [New] and [Engine.With] take the same options; an
// option of With overrides the same option of New. A nil Option has no effect. Each option
// states its default.
type Option func(*config)

// config is the sum of the options. It is immutable once made.
type config struct {
	err  error // the first bad option
	name string

	service string // the owner of the records; empty: all services on the store

	lease     time.Duration
	retention time.Duration
	tombstone time.Duration
	maxHold   time.Duration
	wait      time.Duration

	maxWaiters int

	maxRequest  int64
	maxResponse int64
	backlog     int64
	maxSteps    int64

	policy
	transactional bool
	resumable     bool
	failOpen      bool
	optional      bool
	global        bool
	scope         core.RequestFunc
	headers       map[string]bool // allow-list; nil: the default
	sealing       *sealing        // nil: responses are stored as they are

	fingerprint func(context.Context, core.Request, *Parts) error // nil: the default
	storeIf     func(context.Context, endpoint.Response) bool     // nil: the status decides

	profile     reason.Profile
	perEndpoint bool
	equalJSON   bool

	guard    *core.Guard
	observer observe.Observer
	told     bool // the observer is from WithObserver
}

const (
	minLease = 10 * time.Millisecond

	defaultLease     = 30 * time.Second
	defaultRetention = 24 * time.Hour
	defaultMaxHold   = 5 * time.Minute
	defaultLimit     = 1 << 20
	defaultBacklog   = 64 << 20
	defaultSteps     = 64 << 10
)

func defaults() config {
	return config{
		name: "idempotency", lease: defaultLease, retention: defaultRetention, maxHold: defaultMaxHold,
		maxRequest: defaultLimit, maxResponse: defaultLimit, backlog: defaultBacklog, maxSteps: defaultSteps,
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
	case c.strict && c.transactional:
		return c, fmt.Errorf("%w: Strict and Transactional: effects in a transaction are never of unknown outcome; give one of the two", core.ErrConfig)
	case c.retention < c.lease:
		return c, fmt.Errorf("%w: Retention %v is less than Lease %v", core.ErrConfig, c.retention, c.lease)
	}
	return c, c.contradiction()
}

// fits refuses an option that the store cannot serve.
func (c *config) fits(store Store) error {
	if c.transactional && !record.IsTransactional(store) {
		return fmt.Errorf("%w: Transactional: a handler's transaction cannot have the records of a %T; "+
			"use a pgstore.Store, or leave the option out", core.ErrConfig, store)
	}
	return nil
}

func (c *config) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: %s", core.ErrConfig, fmt.Sprintf(format, args...))
	}
}

// set sets a duration, unless it is outside its limits.
func (c *config) set(to *time.Duration, option string, d, least, most time.Duration) {
	if wrong := clock.Limits(d, least, most); wrong != "" {
		c.fail("%s(%v): %s", option, d, wrong)
		return
	}
	*to = d
}

// size sets a length in bytes, unless it is negative.
func (c *config) size(to *int64, option string, n int64) {
	if *to = n; n < 0 {
		c.fail("%s(%d): must not be negative", option, n)
	}
}

// Scope sets the function that finds the principal of a request, so that two
// clients that choose the same key are independent. f returns the principal as
// authentication in front has left it. [core.FromContext] makes such a function;
// [core.RequestFunc] says what f may return, and how f finds what gin and echo keep
// in their own contexts. The store keeps only a hash of the principal. A request
// without a principal is refused ([reason.NoPrincipal]), and so is a principal that begins with
// "interlock ". Let the principal be a person or an account, and no credential (a session, a
// token, an API key): a client that renews it and sends the request again has another principal
// then, and the request is carried out twice. Required, unless [Global] is given.
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

// Global says that all clients share one space of keys. A client that learns or
// guesses another client's key, and sends the same request, then gets that client's
// response. Default: off; a [Scope] is required.
func Global() Option {
	return func(c *config) { c.scope, c.global = nil, true }
}

// Name names the endpoint for observers. Use a text with few different values,
// never a key. Default: "idempotency".
func Name(s string) Option {
	return func(c *config) { c.name = s }
}

// Lease sets how long a claim outlives a process that died, before another process
// may take the record over. The engine renews a claim each time a third of the
// lease has passed, for as long as the handler runs. d is at least 10 ms and at most 31
// days. Default: 30 s.
func Lease(d time.Duration) Option {
	return func(c *config) { c.set(&c.lease, "Lease", d, minLease, clock.LongestLease) }
}

// Retention sets how long a response is kept, from the time it was stored. A replay
// does not change it. d is at least the [Lease] and at most 36,500 days. Default: 24 h.
func Retention(d time.Duration) Option {
	return func(c *config) { c.set(&c.retention, "Retention", d, 1, clock.LongestKept) }
}

// Tombstone sets for how long after its [Retention] a key is remembered as used. A
// request with the key that comes then is refused ([reason.KeyExpired]) and not
// carried out a second time. It costs a small key in the store for each record. d is at
// most 36,500 days. Default: 0, the key may be used again.
func Tombstone(d time.Duration) Option {
	return func(c *config) { c.set(&c.tombstone, "Tombstone", d, 0, clock.LongestKept) }
}

// MaxHold bounds how long a handler may run. Nothing else bounds it, because its
// context does not end when the client leaves. After d the context ends with cause
// [core.ErrMaxHold], and the engine renews the claim no longer. d is positive and at
// most 366 days. Default: 5 min.
func MaxHold(d time.Duration) Option {
	return func(c *config) { c.set(&c.maxHold, "MaxHold", d, 1, clock.LongestTime) }
}

// Strict never carries out a request a second time if it may have had an effect the
// first time: every request counts as marked ([MarkEffect]) from its start. If the
// process of a request died, later requests with the key get
// [reason.OutcomeUnknown]. A failure of the handler is stored. Default: off;
// such a request is carried out again.
func Strict() Option {
	return func(c *config) { c.strict = true }
}

// Transactional says that the handler makes all its effects in the transaction of its
// attempt (pgstore.Tx). The store then need not flush the claim to disk
// before the handler runs: if a crash of the database loses the claim, the effects are
// lost with it. Without it the transaction works as well, and the request takes one
// flush longer. It is for a store whose records are in the database of the effects
// ([record.Transactor], such as pgstore), and cannot be given together with [Strict]. Default: off.
func Transactional() Option {
	return func(c *config) { c.transactional = true }
}

// StoreAll stores every answer of the handler: also failures, which otherwise
// give the claim up, and the answers that refuse for the time being (401, 402, 408,
// 409, 423, 425, 429) or send the client elsewhere (307, 308). Default: off.
func StoreAll() Option {
	return func(c *config) { c.storeAll = true }
}

// StoreIf sets the function that tells the answers of the handler that settle the request
// from failures that have the status of a success. GraphQL and JSON-RPC answer 200 when a
// call fails, and name the error in the body:
//
//	idempotency.StoreIf(func(_ context.Context, answer endpoint.Response) bool {
//		var reply struct{ Errors []json.RawMessage }
//		return json.Unmarshal(answer.Body, &reply) != nil || len(reply.Errors) == 0
//	})
//
// f is asked about each answer that is stored by its status, in every protocol: of a gRPC
// method, and of a function (package once), the body is the encoded message or result. If
// f returns false, the client gets the answer, and it counts as a failure of the handler,
// like a 500. The claim is given up, and a retry runs the handler again. A transaction of
// the request (record.Enlist) is rolled back. After [MarkEffect], and with [Strict] or
// [StoreAll], the answer is stored and replayed all the same.
//
// f is not asked about an answer that is longer than [MaxResponse]. The argument of f is a
// copy. If f panics, the answer is stored, and the panic is logged. f must be safe for
// concurrent use. Default, and if f is nil: the status decides.
func StoreIf(f func(ctx context.Context, answer endpoint.Response) bool) Option {
	return func(c *config) { c.storeIf = f }
}

// WaitReplay lets a duplicate of a request in flight wait for up to d, and then
// replays the response to it. At the end of d, or at its deadline, the duplicate is
// refused ([reason.InFlight]). [MaxWaiters] bounds how many duplicates wait. d is at
// most 366 days. Default: 0, the duplicate is refused at once.
func WaitReplay(d time.Duration) Option {
	return func(c *config) { c.set(&c.wait, "WaitReplay", d, 0, clock.LongestTime) }
}

// MaxWaiters bounds how many duplicates of one request wait for its answer at a
// time ([WaitReplay]), in this process. One more is refused at once
// ([reason.InFlight]). A duplicate that waits keeps its body in memory, up to
// [MaxRequest]. n is at least 1. Default: 32.
func MaxWaiters(n int) Option {
	return func(c *config) {
		if c.maxWaiters = n; n < 1 {
			c.fail("MaxWaiters(%d): must be at least 1; WaitReplay(0) does not wait", n)
		}
	}
}

// MaxRequest sets the length of the longest request body that the engine reads, in
// bytes. A longer body is refused ([reason.BodyTooLarge]). Default: 1 MiB.
func MaxRequest(n int64) Option {
	return func(c *config) { c.size(&c.maxRequest, "MaxRequest", n) }
}

// MaxResponse sets the length of the longest response body that is stored, in
// bytes. A longer response is sent in full, and a duplicate is refused
// ([reason.ResponseUnavailable]); in a transaction (pgstore.Tx) it is refused, and the
// transaction rolled back ([reason.ResponseTooLarge]). Default: 1 MiB.
func MaxResponse(n int64) Option {
	return func(c *config) { c.size(&c.maxResponse, "MaxResponse", n) }
}

// Backlog bounds the memory, in bytes, for responses that were sent while the store
// was unavailable and wait to be stored. Beyond it the engine keeps the fact that
// the request was carried out, and not the response. Default: 64 MiB. For [New]
// only; [Engine.With] ignores it.
func Backlog(n int64) Option {
	return func(c *config) { c.size(&c.backlog, "Backlog", n) }
}

// FailOpen lets requests through without a record when the store cannot be reached.
// Duplicates are then carried out again. Use it where idempotency saves effort,
// never where money moves. Each such request is counted
// ([observe.Observation.Bypassed]), and logged through [slog.Default] at most once a
// minute. A damaged record ([ErrDamaged]) is always refused. Default: off; such
// requests are refused ([reason.NoRecord]).
func FailOpen() Option {
	return func(c *config) { c.failOpen = true }
}

// Optional lets requests without a key through, as if the endpoint were not
// idempotent. A malformed key is refused nevertheless. Default: off; requests
// without a key are refused ([reason.KeyMissing]).
func Optional() Option {
	return func(c *config) { c.optional = true }
}

// ReplayHeaders stores only the header fields with these names. Default: all fields
// except fields that belong to one response alone: Set-Cookie, Date, hop-by-hop
// fields (RFC 9110, 7.6.1) and fields that Connection names, ids of traces and
// requests, rate limits. In both cases a replay has a Content-Length, its
// own, and the Content-Encoding of the first answer, if that had them.
func ReplayHeaders(names ...string) Option {
	return func(c *config) {
		c.headers = make(map[string]bool, len(names))
		for _, name := range names {
			c.headers[textproto.CanonicalMIMEHeaderKey(name)] = true
		}
	}
}

// Under runs the handler under the lock of a guard: first the claim, then the lock,
// then the handler. Then the response is stored and the lock released, in one round
// trip if both are in one store. A replay takes no lock. A refusal of the guard is not
// stored. Default: no lock.
func Under(guard *core.Guard) Option {
	return func(c *config) { c.guard = guard }
}

// WithObserver sets the [observe.Observer] of requests, in place of the observer of the
// locker. With nil there is none. The locks of [Under] are reported to the observer of
// their locker in any case. Default: the observer ([core.WithObserver]) of the locker
// of the guard in [Under]; without Under, none.
func WithObserver(o observe.Observer) Option {
	return func(c *config) { c.observer, c.told = o, true }
}

// ReleaseInvalid keeps no record of a request that the handler refuses as invalid:
// 400 and 422, in gRPC INVALID_ARGUMENT and OUT_OF_RANGE. The claim is given up,
// and the next request with the key is carried out, also a request with a corrected
// body.
//
// Use it where clients may send any number of such requests: each record takes
// about 900 bytes with a short answer (measured on Redis 7.0), for the whole
// [Retention]. Give it only to endpoints that answer so before any effect. After
// [MarkEffect], and with [StoreAll], the answer is stored nevertheless. Default:
// off; such answers are stored and replayed.
func ReleaseInvalid() Option {
	return func(c *config) { c.releaseInvalid = true }
}
