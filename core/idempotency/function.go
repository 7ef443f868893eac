package idempotency

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/reason"
)

// maxFuncKey is the length of the longest key of a function, in bytes: that of a
// lock's. Nothing of it is in a header, so any byte is accepted.
const maxFuncKey = 512

// function is the [Call] of a function: one call of [Do].
type function struct {
	adapter.Message // its payload is the encoded input

	engine *Engine
	err    error // the first bad option
	key    string
	scope  string
	scoped bool // scope is given
	input  [sha256.Size]byte

	marshal    func(v any) ([]byte, error)
	unmarshal  func(data []byte, v any) error
	cancelable bool
	caller     context.Context // of the call; nil unless it is cancelable
}

// function makes the call of a function.
func (e *Engine) function(ctx context.Context, key string, in any, opts []DoOption) (*function, error) {
	f := &function{engine: e, key: key, marshal: json.Marshal, unmarshal: unmarshalJSON}
	f.Name, f.Source, f.Lookup = e.config.name, in, ctx.Value
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

// Protocol implements [Call].
func (f *function) Protocol() string { return Func }

// Key implements [Call].
func (f *function) Key() []string { return []string{f.key} }

// Target implements [Call]. The input is part of it, so that a call inside the function
// itself is its own request only if it asks for the same work.
func (f *function) Target() (method, path, query string) { return "", "", string(f.input[:]) }

// Origin implements [Call].
func (f *function) Origin() (host, path, query string) { return "", "", "" }

// keyOf reads the key of a request. That of a function is the caller's own text, in
// which nothing is quoted.
func keyOf(call Call) (string, error) {
	f, ok := call.(*function)
	switch {
	case !ok:
		return ParseKey(call.Key())
	case f.key == "":
		return "", fmt.Errorf("%w: empty; all calls would share one result", ErrKeyMalformed)
	case len(f.key) > maxFuncKey:
		return "", fmt.Errorf("%w: %d bytes, at most %d are accepted", ErrKeyMalformed, len(f.key), maxFuncKey)
	}
	return f.key, nil
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

// answer makes the answer that is stored of what the function returned.
func (f *function) answer(ctx context.Context, a *Attempt, out any, failure error) Response {
	switch {
	case failure == nil:
	case isFinal(failure):
		return Response{Status: funcFinal, Body: []byte(failure.Error())}
	default:
		return Response{Status: funcFailed, Body: []byte(failure.Error())}
	}
	body, err := f.encode(out)
	if err != nil {
		// The function has had its effect, and its caller gets the result.
		f.engine.log(ctx, slog.LevelError, "interlock: the result of a function cannot be encoded: it is not stored, "+
			"and later calls with the key are refused", err)
		a.TooLarge(funcDone)
	}
	return Response{Status: funcDone, Body: body}
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
func (f *function) replay(r *Response, out any) error {
	if r.Status != funcDone {
		return &StoredError{Text: string(r.Body), Replayed: true}
	}
	// A copy, since the codec may keep it, or write to it.
	if err := f.unmarshal(bytes.Clone(r.Body), out); err != nil {
		err = fmt.Errorf("%w: decoding it: %w", ErrResponseUnavailable, err)
		return f.refused(f.engine.refusal(reason.ResponseUnavailable, err), nil)
	}
	return nil
}

// refused is the error for a refusal. failure is what the function returned, if it
// ran.
func (f *function) refused(r *core.Refusal, failure error) error {
	e := newRefused(r)
	e.failure = failure
	if r.Ran && (r.Reason == reason.Lost || r.Reason == reason.MaxHold) {
		e.RetryAfter = f.engine.config.lease // until then it is in flight
	}
	return e
}
