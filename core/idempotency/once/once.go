package once

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
)

// Do runs fn once for a key, and stores its result. A later call with the key, in any
// process, gets that result and does not run fn. It is an idempotent request without a
// protocol, for consumers of messages (deduplication), jobs and schedules:
//
//	receipt, err := once.Do(ctx, engine, "charge/"+msg.ID, order, charge)
//
// # The key
//
// key names the piece of work: the action and the message. Two functions for the same message
// need two keys, or the second one gets the result of the first. A key has 1 to 512 bytes.
// Keys of functions never meet keys of requests, also on one [idempotency.Engine].
//
// A function by itself has no principal. With [idempotency.Global] all functions of the store
// share one space of keys. With [idempotency.Scope] the engine asks its function, which sees
// ctx ([core.Request.Value]) and the [Metadata] of the call. [Scoped] gives the principal to
// the call. If none is found, the call is refused ([reason.NoPrincipal]).
//
// A call with a different encoded input is refused ([idempotency.ErrKeyReused]). An input
// that is not the same in each try (it has the time in it) belongs into the closure, or out
// of the fingerprint ([idempotency.Fingerprint]).
//
// # Storage
//
// A result of fn without an error is stored and replayed. An error is not: the claim is given
// up, and the next call runs fn again. [Final] makes an error that is stored
// and replayed. After [idempotency.MarkEffect], and with [idempotency.Strict] or
// [idempotency.StoreAll], every error is. The caller gets such an error as a
// [StoredError]. A panic of fn passes through, and counts as an error.
//
// Input and result are encoded by encoding/json, or by the option [Codec]. A result
// that cannot be encoded, or that is longer than [idempotency.MaxResponse], is returned
// to this caller; later calls are refused ([idempotency.ErrResponseUnavailable]).
//
// # What fn gets
//
// The context of fn is like a handler's: [idempotency.MarkEffect],
// [idempotency.Generation] and [idempotency.DownstreamKey] work with it,
// [core.LeaseFromContext] finds the lock of [idempotency.Under], and it ends when the
// claim is lost, or after [idempotency.MaxHold]. It does not end with ctx, unless the
// option [Cancelable] says so. If the process dies, the next call after the
// [idempotency.Lease] runs fn again, with a [idempotency.Generation] of 2; after
// MarkEffect it is refused ([idempotency.ErrOutcomeUnknown]). A call that comes while
// another one runs fn is refused ([idempotency.ErrInFlight]), or waits
// ([idempotency.WaitReplay]).
//
// # Errors
//
// If err is not nil, the result is the zero value. The error is one of these:
//
//   - an error that fn returned to this call, as it is. The next call runs fn again, or
//     gets it as a StoredError if it was stored all the same.
//   - a [*StoredError]: an error that is the stored answer of the key.
//   - a [*RefusedError]: fn did not run, or ran and its outcome is not known. It matches the
//     cause of the refusal: [idempotency.ErrInFlight], [idempotency.ErrKeyReused],
//     [idempotency.ErrOutcomeUnknown], [idempotency.ErrResponseUnavailable],
//     [idempotency.ErrKeyExpired], [idempotency.ErrDamaged], [core.ErrUnavailable],
//     [core.ErrHeld], [core.ErrLost], [core.ErrMaxHold], [core.ErrClosed], [core.ErrKey],
//     [idempotency.ErrRolledBack] or [context.Cause] of ctx.
//   - an error that matches [core.ErrConfig]: an option cannot work, or the input
//     cannot be encoded.
//
// Do is safe for concurrent use.
func Do[In, Out any](
	ctx context.Context, engine *idempotency.Engine, key string, in In, fn func(ctx context.Context, in In) (Out, error), opts ...Option,
) (Out, error) {
	var out, none Out
	var failure error
	f, err := newFunction(ctx, engine, key, in, opts)
	if err != nil {
		return none, err
	}
	run := func(ctx context.Context) (answered bool) {
		ctx, end := f.attach(ctx)
		defer end()
		out, failure = fn(ctx, in)
		return failure == nil || isFinal(failure)
	}
	verdict := engine.Do(ctx, f, endpoint.Handler{
		Run: func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			answered := run(ctx)
			return f.answer(ctx, a, out, failure), answered
		},
		Pass: run,
	})
	switch {
	case verdict.Refusal != nil:
		return none, f.refused(verdict.Refusal, failure)
	case verdict.Replay != nil:
		var stored Out
		if err := f.replay(verdict.Replay, &stored); err != nil {
			return none, err
		}
		return stored, nil
	case failure != nil:
		return none, returned(failure)
	}
	return out, nil
}

// Option changes one call of [Do]. A nil Option has no effect. Options for all calls
// are options of the [idempotency.Engine] ([idempotency.Option]).
type Option func(*function)

// Scoped sets the principal of the key: a tenant, a user. Calls with the same key and
// different principals are independent. It takes the place of the engine's
// [idempotency.Scope] or [idempotency.Global]. An empty principal refuses the call
// ([reason.NoPrincipal]), since all messages that lack one would share a space of keys.
// Default: as the engine has it.
func Scoped(principal string) Option {
	return func(f *function) { f.scope, f.scoped = principal, true }
}

// Metadata holds the data that came with the input: the headers of a message. A guard
// given to [idempotency.Under] finds it by {name} and by {header.Name}, a
// [core.KeyFunc] and a [idempotency.Scope] function by [core.Request.Header]. It is not
// part of the fingerprint. Do does not change the map. Default: none.
func Metadata(m map[string]string) Option {
	return func(f *function) { f.Metadata = m }
}

// Codec says how input and result are encoded. marshal gets the input, and later the
// result. unmarshal gets a pointer to a result. Both are like the functions of
// encoding/json:
//
//	once.Codec(json.Marshal, json.Unmarshal)
//
// marshal must give the same bytes for the same input each time, in every process, as
// encoding/json does with maps and encoding/gob does not. Results that were stored with
// another codec are refused ([idempotency.ErrResponseUnavailable]), or misread. Both
// must be safe for concurrent use. Default: encoding/json.
func Codec(marshal func(v any) ([]byte, error), unmarshal func(data []byte, v any) error) Option {
	return func(f *function) {
		if marshal == nil || unmarshal == nil {
			f.err = fmt.Errorf("%w: Codec: neither function may be nil", core.ErrConfig)
			return
		}
		f.marshal, f.unmarshal = marshal, unmarshal
	}
}

// Cancelable ends the context of fn also when the context of the call ends, with its
// cause, and gives it the deadline of the call. Use it for work that is better broken
// off than ended late. The error that fn then returns is an error like any other: it
// gives the claim up, but after [idempotency.MarkEffect] it is stored. So give the
// effect itself a context that does not end ([context.WithoutCancel]). Default: off; fn
// runs to its end, within [idempotency.MaxHold].
func Cancelable() Option {
	return func(f *function) { f.cancelable = true }
}

// ScopeOf returns what [idempotency.Engine.Forget] and [idempotency.Engine.Resolve] take
// as the scope of a key of [Do]. principal is what [Scoped] gives, or the engine's
// [idempotency.Scope], and empty with [idempotency.Global].
//
//	engine.Resolve(ctx, once.ScopeOf(""), "charge/m1", admin.NotCarriedOut())
func ScopeOf(principal string) string { return "interlock function\x00" + principal }

// unmarshalJSON is json.Unmarshal, except that no text at all is the zero value: what an
// operator resolves a function with that has no result.
func unmarshalJSON(data []byte, v any) error {
	if len(data) == 0 {
		return nil
	}
	return json.Unmarshal(data, v)
}
