package httplock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/internal/uuid"
)

// Transport is the [http.RoundTripper] of a client of idempotent endpoints. It gives each
// request with a side effect an Idempotency-Key, and sends the request again, with the
// same key and body, until the endpoint has answered.
//
//	client := &http.Client{Transport: &httplock.Transport{}}
//
// A request of a method that is not safe (RFC 9110, 9.2.1) has the key that its caller set
// in the header, or else the key of its context ([WithIdempotencyKey]), or else a new
// UUID of version 7. Safe requests (GET, HEAD, OPTIONS, TRACE, QUERY) go to Base as they
// are, once.
//
// A request is sent again after an error of the connection, after status 409 if a request
// with the key is in flight, and after 423, 429, and 5xx. A replay of a stored response
// (Idempotent-Replayed) is final in every case. Between two tries Transport pauses for
// Retry-After, and else for 0.1 s, doubled after each try up to 5 s, of which up to a half is
// left out at random. It gives up after Tries tries, if the context of the request ends, if
// the pause would last beyond the deadline of the context, or if Retry-After is above one
// minute. A context without a deadline is bounded by Tries alone.
//
// RoundTrip has three results:
//   - A response and no error. The endpoint has answered: it has carried out the request or
//     refused it. With status 423, 429 or 5xx nothing was carried out.
//   - An error that matches [idempotency.ErrOutcomeUnknown]. The request may have been carried
//     out, whole or in part: a try had no answer, or the handler failed. Ask again later with
//     the key of the error ([RequestError], [WithIdempotencyKey]). With another key the
//     effect could come twice.
//   - Another error. The request was not carried out: no try reached a server, or the
//     request cannot be sent. If it matches [idempotency.ErrKeyReused], the server knows the
//     key from another request; if it matches [idempotency.ErrResponseUnavailable], a request
//     with the key was carried out, and its response is gone.
//
// Unlike other RoundTrippers, Transport so reports some responses as errors, because the
// caller could take them for a failure of a request that had its effect.
//
// The fields must not change once a request was sent. A Transport is safe for concurrent use.
type Transport struct {
	// Base sends each try. Default, and if nil: [http.DefaultTransport].
	Base http.RoundTripper
	// Tries is how often a request is sent at most. Default, and if it is not positive: 8.
	Tries int
	// MaxBody is the length, in bytes, of the longest body that is copied to be sent again.
	// A body with a GetBody function ([http.NewRequest] sets it for buffers and strings) is
	// not copied and may have any length. Default, and if it is not positive: 1 MiB.
	MaxBody int64
	// OnTry is called after each try, for logs and metrics. It must be safe for concurrent
	// use, and must not change the request. Default, and if nil: nothing is called.
	OnTry func(Try)
}

// Try is one of the times that a request was sent; see [Transport].
type Try struct {
	// Request is the request with its Idempotency-Key.
	Request *http.Request
	// Number counts the tries of the request from 1.
	Number int
	// Status is the status of the response; 0 if there was none.
	Status int
	// Err says why there was no response; nil if there was one.
	Err error
	// Pause is how long Transport waits until it tries again; 0 if this try was the last.
	Pause time.Duration
}

// RequestError is the error of a [Transport] that has sent a request and has no response to
// return. Err says what that means; the three results of Transport list the errors that it
// matches.
type RequestError struct {
	// Key is the idempotency key of the request, for [WithIdempotencyKey].
	Key string
	// Tries is how often the request was sent.
	Tries int
	// Status is the status of the last response; 0 if there was none.
	Status int
	// Err is the cause. It is never nil.
	Err error
}

// Error returns a text without the key.
func (e *RequestError) Error() string {
	return fmt.Sprintf("interlock: no response to an idempotent request, sent %d times: %v", e.Tries, e.Err)
}

// Unwrap returns Err.
func (e *RequestError) Unwrap() error { return e.Err }

type keyOfClient struct{}

// WithIdempotencyKey returns a context with the idempotency key of one request to be sent
// through a [Transport]. A job that stores the key before it sends the request can send the
// request again after a crash, and has its effect once. The key has 1 to 255 visible ASCII
// characters or spaces. Transport puts a key in quotes if the header needs them, and
// refuses any other key before anything is sent.
//
// Use the context for one request only: a second, different request with the key is refused
// by the server (422).
func WithIdempotencyKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, keyOfClient{}, key)
}

const (
	defaultTries   = 8
	defaultMaxBody = 1 << 20
)

// RoundTrip sends a request until it is answered; see [Transport]. It closes the body of the
// request.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, "QUERY":
		return t.base().RoundTrip(r)
	}
	s := sending{Transport: t}
	err := s.prepare(r)
	if r.Body != nil {
		_ = r.Body.Close() // it was read, or is not needed
	}
	if err != nil {
		return nil, fmt.Errorf("interlock: the request was not sent: %w", err)
	}
	return s.send()
}

func (t *Transport) base() http.RoundTripper {
	if t.Base == nil {
		return http.DefaultTransport
	}
	return t.Base
}

// sending is a request on its way.
type sending struct {
	*Transport
	request *http.Request // with its key; each try is a clone
	key     string
	body    func() (io.ReadCloser, error)

	tries   int
	status  int  // of the last response
	unknown bool // a try may have been carried out
}

// prepare makes the request that is to be sent.
func (s *sending) prepare(r *http.Request) (err error) {
	s.request = r.Clone(r.Context())
	values := r.Header.Values(idempotency.KeyHeader)
	if len(values) == 0 {
		if s.request.Header == nil {
			s.request.Header = make(http.Header)
		}
		key, ok := r.Context().Value(keyOfClient{}).(string)
		if !ok {
			key = uuid.New()
		}
		values = []string{quoted(key)}
		s.request.Header.Set(idempotency.KeyHeader, values[0])
	}
	if s.key, err = endpoint.ParseKey(values); err != nil {
		return err
	}
	s.body, err = s.bodies(r)
	return err
}

// bodies returns a function that returns the body for each try.
func (s *sending) bodies(r *http.Request) (func() (io.ReadCloser, error), error) {
	if r.Body == nil || r.Body == http.NoBody {
		return func() (io.ReadCloser, error) { return r.Body, nil }, nil
	}
	if r.GetBody != nil {
		return r.GetBody, nil
	}
	limit := s.MaxBody
	if limit <= 0 {
		limit = defaultMaxBody
	}
	tooLong := fmt.Errorf("the body can be read only once and is longer than the %d bytes of MaxBody: "+
		"set GetBody of the request, or raise MaxBody", limit)
	if r.ContentLength > limit {
		return nil, tooLong
	}
	b, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading its body: %w", err)
	case int64(len(b)) > limit:
		return nil, tooLong
	}
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }, nil
}

// send sends the request until there is a result.
func (s *sending) send() (*http.Response, error) {
	most := s.Tries
	if most <= 0 {
		most = defaultTries
	}
	for {
		try, res, err := s.once()
		if err != nil && try == nil { // its body
			return nil, s.failed(err)
		}
		a := s.judge(res, err)
		pause, ok := time.Duration(0), false
		if a.again && s.tries < most && s.request.Context().Err() == nil {
			pause, ok = s.pause(res)
		}
		if s.OnTry != nil {
			s.OnTry(Try{Request: try, Number: s.tries, Status: s.status, Err: err, Pause: pause})
		}
		if !ok {
			return s.result(res, a, err)
		}
		discard(res)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-s.request.Context().Done():
			timer.Stop()
			return nil, s.failed(context.Cause(s.request.Context()))
		}
	}
}

// once sends the request once. The try is nil if nothing was sent, because its body cannot be had.
func (s *sending) once() (try *http.Request, res *http.Response, err error) {
	body, err := s.body()
	if err != nil {
		return nil, nil, fmt.Errorf("its body cannot be read again: %w", err)
	}
	s.tries++
	var looked, found atomic.Int32
	try = s.request.Clone(httptrace.WithClientTrace(s.request.Context(), &httptrace.ClientTrace{
		GetConn: func(string) { looked.Add(1) },
		GotConn: func(httptrace.GotConnInfo) { found.Add(1) },
	}))
	try.Body = body
	res, err = s.base().RoundTrip(try)
	// net/http sends a request with an Idempotency-Key again by itself if a connection that
	// was used before breaks. What came of the first connection is then unknown.
	s.unknown = s.unknown || found.Load() > 1
	if err != nil {
		// A transport that looks for a connection and finds none has sent nothing.
		s.status, s.unknown = 0, s.unknown || looked.Load() == 0 || found.Load() > 0
		return try, nil, err
	}
	s.status = res.StatusCode
	return try, res, nil
}

// result returns what the caller gets of the last try.
func (s *sending) result(res *http.Response, a answer, err error) (*http.Response, error) {
	switch {
	case err != nil:
		return nil, s.failed(err)
	case a.err != nil:
		discard(res)
		s.unknown = false
		return nil, s.failed(a.err)
	case !a.settles && s.unknown:
		discard(res)
		return nil, s.failed(errors.New("the last response has status " + res.Status))
	}
	return res, nil
}

// failed returns the error of the request.
func (s *sending) failed(err error) error {
	if s.unknown {
		err = fmt.Errorf("%w: %w", idempotency.ErrOutcomeUnknown, err)
	}
	return &RequestError{Key: s.key, Tries: s.tries, Status: s.status, Err: err}
}

// discard reads the rest of a short response, so that its connection can be used again.
func discard(res *http.Response) {
	if res != nil {
		_, _ = io.CopyN(io.Discard, res.Body, maxProblem)
		_ = res.Body.Close()
	}
}

// quoted returns a key as the header has it.
func quoted(key string) string {
	if bare, err := endpoint.ParseKey([]string{key}); err == nil && bare == key {
		return key
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
}
