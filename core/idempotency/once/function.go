package once

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/internal/logs"
	"github.com/interlock-go/interlock/core/reason"
)

// maxKey is the length of the longest key of a function, in bytes, as of a lock's.
// Nothing of it is in a header, so any byte is accepted.
const maxKey = 512

// errUnscoped takes the place of [endpoint.ErrNoPrincipal]: the caller sees the error.
var errUnscoped = fmt.Errorf("%w: the function has no principal: Scoped gives it a principal that is not empty, "+
	"and an engine with Global needs none", core.ErrKey)

// unencodable are the lines about results that cannot be encoded.
var unencodable = logs.Requests{Log: new(logs.Log)}

// function is the [endpoint.Call] of a function: one call of [Do].
type function struct {
	adapter.Message // its payload is the encoded input

	engine *idempotency.Engine
	lease  time.Duration // of the claim; 0 before it was granted
	err    error         // the first bad option
	key    string
	scope  string
	scoped bool // scope is given
	input  [sha256.Size]byte

	marshal    func(v any) ([]byte, error)
	unmarshal  func(data []byte, v any) error
	cancelable bool
	location   *time.Location  // of Per; nil for UTC
	caller     context.Context // of the call; nil unless it is cancelable
}

// newFunction makes the call of a function.
func newFunction(ctx context.Context, engine *idempotency.Engine, key string, in any, opts []Option) (*function, error) {
	f := &function{engine: engine, key: key, marshal: json.Marshal, unmarshal: unmarshalJSON}
	f.Name, f.Source, f.Lookup = engine.Name(), in, ctx.Value
	for _, o := range opts {
		if o != nil {
			o(f)
		}
	}
	if f.err != nil {
		return nil, f.err
	}
	if f.cancelable {
		f.caller = ctx
	}
	var err error
	if f.Payload, err = f.marshal(in); err != nil {
		return nil, fmt.Errorf("%w: the input of a function cannot be encoded: %w", core.ErrConfig, err)
	}
	f.input = sha256.Sum256(f.Payload)
	return f, nil
}

// Protocol implements [endpoint.Call].
func (f *function) Protocol() string { return endpoint.Func }

// Key implements [endpoint.Call]. The key is the caller's own text, without quoting.
func (f *function) Key() (string, error) {
	switch {
	case f.key == "":
		return "", fmt.Errorf("%w: empty; all calls would share one result", endpoint.ErrKeyMalformed)
	case len(f.key) > maxKey:
		return "", fmt.Errorf("%w: %d bytes, at most %d are accepted", endpoint.ErrKeyMalformed, len(f.key), maxKey)
	}
	return f.key, nil
}

// Target implements [endpoint.Call]. The input is part of it, so that a call inside the
// function itself is its own request only if it asks for the same work.
func (f *function) Target() (method, path, query string) { return "", "", string(f.input[:]) }

// Origin implements [endpoint.Call].
func (f *function) Origin() (host, path, query string) { return "", "", "" }

// Scope implements [endpoint.Scoper]: functions have a separate space of keys.
func (f *function) Scope(principal func() (string, error)) (string, error) {
	if f.scoped {
		if f.scope == "" {
			return "", errUnscoped
		}
		return ScopeOf(f.scope), nil
	}
	found, err := principal()
	switch {
	case errors.Is(err, endpoint.ErrNoPrincipal):
		return "", errUnscoped
	case err != nil:
		return "", err
	}
	return ScopeOf(found), nil
}

// attach returns the context of the function. The function end must be called after it.
func (f *function) attach(ctx context.Context) (attached context.Context, end func()) {
	if f.caller == nil {
		return ctx, func() {}
	}
	attached, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(f.caller, func() { cancel(context.Cause(f.caller)) })
	release := func() {}
	if at, ok := f.caller.Deadline(); ok {
		attached, release = context.WithDeadlineCause(attached, at, context.DeadlineExceeded)
	}
	return attached, func() {
		stop()
		release()
		cancel(core.ErrReleased)
	}
}

// answer makes the stored answer from the result of the function.
func (f *function) answer(ctx context.Context, a endpoint.Attempt, out any, failure error) endpoint.Response {
	f.lease = a.Lease()
	switch {
	case failure == nil:
	case isFinal(failure):
		return endpoint.Response{Status: endpoint.FuncFinal, Body: []byte(failure.Error())}
	default:
		return endpoint.Response{Status: endpoint.FuncFailed, Body: []byte(failure.Error())}
	}
	body, err := f.encode(out)
	if err != nil {
		// The function has had its effect, and its caller gets the result.
		unencodable.Add(ctx, slog.LevelError, "interlock: the result of a function cannot be encoded: it is not stored, "+
			"and later calls with the key are refused", f.engine.Name(), err)
		a.TooLarge(endpoint.FuncDone)
	}
	return endpoint.Response{Status: endpoint.FuncDone, Body: body}
}

// encode encodes a result. A panic must not make the function run a second time.
func (f *function) encode(out any) (body []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			body, err = nil, fmt.Errorf("interlock: panic: %v", p)
		}
	}()
	return f.marshal(out)
}

// replay reads a stored answer into out, or returns the error that it is.
func (f *function) replay(r *endpoint.Response, out any) error {
	if r.Status != endpoint.FuncDone {
		return &StoredError{Text: string(r.Body), Replayed: true}
	}
	// A copy, since the codec may keep it, or write to it.
	if err := f.unmarshal(bytes.Clone(r.Body), out); err != nil {
		err = fmt.Errorf("%w: decoding it: %w", idempotency.ErrResponseUnavailable, err)
		return f.refused(&core.Refusal{Reason: reason.ResponseUnavailable, Rule: f.engine.Name(), Err: err}, nil)
	}
	return nil
}

// refused is the error for a refusal. failure is the error of the function, if it ran.
func (f *function) refused(r *core.Refusal, failure error) error {
	e := newRefused(r)
	e.failure = failure
	if r.Ran && (r.Reason == reason.Lost || r.Reason == reason.MaxHold || r.Reason == reason.Superseded) {
		e.RetryAfter = f.lease // until then it is in flight
	}
	return e
}
