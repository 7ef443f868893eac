package httplock

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/internal/asked"
	"github.com/interlock-go/interlock/internal/uuid"
)

// Transport is the [http.RoundTripper] of a client of idempotent endpoints. It gives each
// request with a side effect an Idempotency-Key, and sends the request again, with the
// same key and body, until the endpoint has answered.
//
//	client := &http.Client{Transport: &httplock.Transport{}}
//
// A request of a method that is not safe (RFC 9110, 9.2.1) has the key that its caller set
// in the header. Without one it has the key of its context ([idempotency.WithKey]), or inside
// the handler of an idempotent endpoint a key that is derived from the request of the handler
// ([idempotency.CallKey]), or else a new UUID of version 7. Safe requests (GET, HEAD, OPTIONS,
// TRACE, QUERY) go to Base as they are, once.
//
// A loop around the client that sends a request again makes a new key for each turn, and so may
// pay in each. Transport has such a loop inside. A caller that repeats all the same gives the
// key: the key of the last [idempotency.RequestError], or a key that it stored before it began.
//
// # Tries
//
// A request that is sent under a lock says so ([core.HeldHeader]). A server that needs a lock
// which the caller holds refuses it at once, with status 409. A service in between that fails for it marks
// its answer, and the request is not sent again. While the caller holds a lock, a
// request is not sent again after 423 and 429 (RetryHeld).
//
// A request is sent again after an error of the connection, after status 409 if a request
// with the key is in flight, and after 423, 429, and 5xx. Between two tries Transport pauses for
// 0.1 s, doubled after each try up to 5 s, of which up to a half is left out at random, and for
// Retry-After if that is longer. It gives up after Tries tries, if the context of the request ends, if
// the pause would last beyond the deadline of the context, or if Retry-After is above one
// minute. A context without a deadline is bounded by Tries alone.
//
// After its Timeout [http.Client] replaces an error by a text, and the key is lost. So Transport
// gives up earlier, by a tenth of the time and at most by one second.
//
// # Results
//
// RoundTrip has three results:
//   - A response and no error. The endpoint has answered: it has carried out the request or
//     refused it. With status 423, 429 or 5xx nothing was carried out.
//   - An error that matches [idempotency.ErrOutcomeUnknown]. The request may have been carried
//     out, whole or in part: a try had no answer, or the handler failed. Ask again later with
//     the key of the error ([idempotency.RequestError], [idempotency.WithKey]). With another key
//     the effect could come twice.
//   - Another error. The request was not carried out: no try reached a server, or the
//     request cannot be sent. If it matches [idempotency.ErrKeyReused] alone, the server knows the
//     key from another request; if it matches [idempotency.ErrResponseUnavailable], a request
//     with the key was carried out, and its response cannot be had.
//
// After a try without an answer, and with a key that the caller or the handler around it may
// have sent before, only the endpoint itself settles the request: by a success, by a marked
// answer ([idempotency.ResultHeader], [idempotency.ReplayedHeader]), or by a refusal with such a
// mark that tells the outcome of the key. All else can come from a proxy or a login page (302,
// 400, 403, 404, 408, 421), and leaves the outcome unknown. Endpoints that are not of this
// module have no such mark: set Answered.
//
// A response is an answer when its body has been read to the end. An error of its Read is a
// [idempotency.RequestError] too, and matches [idempotency.ErrOutcomeUnknown] if the
// response is a success or a redirection.
//
// Unlike other RoundTrippers, Transport so reports some responses as errors, because the
// caller could take them for a failure of a request that had its effect.
//
// The fields must not change once a request was sent. A Transport is safe for concurrent use.
type Transport struct {
	// Base sends each try. Default, and if nil: [http.DefaultTransport].
	Base http.RoundTripper
	// Tries bounds the tries of a request. Default, and if it is not positive: 8, and
	// a request in flight is sent again for 35 s: a server that died leaves its claim for 30 s
	// ([idempotency.Lease]).
	Tries int
	// MaxBody is the length, in bytes, of the longest body that is copied to be sent again.
	// A body with a GetBody function ([http.NewRequest] sets it for buffers and strings) is
	// not copied and may have any length. Default, and if it is not positive: 1 MiB.
	MaxBody int64
	// Answered reports whether a response without a mark comes from the endpoint, and not from
	// a server in front of it, and whether each further try gets it too. It is for endpoints of
	// other makes, and must not read the body. Default, and if nil: no such response does.
	Answered func(*http.Response) bool
	// HideHeld keeps the header [core.HeldHeader] from requests: to servers of others, it says
	// how many locks the caller holds. Default: the header is sent under a lock.
	HideHeld bool
	// SendFences sends the keys and fencing tokens of the locks that the caller holds
	// ([core.FencesHeader]), for services inside with a rule of [core.Fenced]: the keys are in
	// plain text. A request with more than fits into the field is not sent. Nor is the field
	// sent after a redirect, which can lead anywhere. Default: no tokens are sent.
	SendFences bool
	// RetryHeld sends a request again also if the lock that it needs is held (423), or all of its
	// permits are (429), while the caller itself holds a lock. Default: such a request is sent once. All who wait for the
	// lock of the caller would wait for each further try.
	RetryHeld bool
	// OnTry is called after each try, for logs and metrics. It must be safe for concurrent
	// use, and must not change the request. Default, and if nil: nothing is called.
	OnTry func(Try)
}

// Try is one attempt to send a request; see [Transport].
type Try struct {
	// Request is the request with its Idempotency-Key.
	Request *http.Request
	// Number counts the tries of the request from 1.
	Number int
	// Status is the status of the response; 0 if there was none.
	Status int
	// Err says why there was no response; nil if there was one.
	Err error
	// Pause is the wait of Transport before the next try; 0 if this try was the last.
	Pause time.Duration
}

const defaultMaxBody = 1 << 20

// RoundTrip sends a request until it is answered; see [Transport]. It closes the body of the
// request.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, "QUERY":
		told, err := t.told(r)
		if err != nil {
			if r.Body != nil {
				_ = r.Body.Close()
			}
			return nil, notSent(err)
		}
		res, err := t.base().RoundTrip(told)
		if err == nil {
			noteStuck(r.Context(), t.meaning(res))
		}
		return res, err
	}
	s := sending{Transport: t, patience: asked.NewPatience(t.Tries)}
	err := s.prepare(r)
	if r.Body != nil {
		_ = r.Body.Close() // it was read, or is not needed
	}
	if err != nil {
		return nil, notSent(err)
	}
	defer s.called()
	return s.send()
}

func notSent(err error) error { return fmt.Errorf("interlock: the request was not sent: %w", err) }

// told returns the request with the fields that say which locks its caller holds.
func (t *Transport) told(r *http.Request) (*http.Request, error) {
	var fields [2][2]string
	if !t.HideHeld {
		fields[0] = [2]string{core.HeldHeader, core.HeldFor(r.Context())}
	}
	if t.SendFences && r.Response == nil {
		fences, err := core.FencesFor(r.Context())
		if err != nil {
			return nil, err
		}
		fields[1] = [2]string{core.FencesHeader, fences}
	}
	told := r
	for _, f := range fields {
		if f[1] == "" || len(r.Header.Values(f[0])) > 0 {
			continue
		}
		if told == r {
			told = r.Clone(r.Context()) // a RoundTripper does not change the request of its caller
			if told.Header == nil {
				told.Header = make(http.Header)
			}
		}
		told.Header.Set(f[0], f[1])
	}
	return told, nil
}

// CloseIdleConnections closes the idle connections of Base, for [http.Client.CloseIdleConnections].
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func (t *Transport) base() http.RoundTripper {
	if t.Base == nil {
		return http.DefaultTransport
	}
	return t.Base
}

// prepare makes the request that is to be sent.
func (s *sending) prepare(r *http.Request) error {
	var err error
	if s.request, err = s.told(r); err != nil {
		return err
	}
	if s.request == r {
		s.request = r.Clone(r.Context())
	}
	if s.request.Header == nil {
		s.request.Header = make(http.Header)
	}
	s.limit(r)
	if s.body, err = s.bodies(r); err != nil {
		return err
	}
	s.called = func() {}
	if values := r.Header.Values(idempotency.KeyHeader); len(values) > 0 {
		s.known = asked.New(true)
		s.key, err = endpoint.ParseKey(values)
		return err
	}
	key, found, called, err := idempotency.CallKey(r.Context(), target(r))
	if err != nil {
		return err
	}
	if !found {
		key = uuid.New()
	}
	value, err := asked.Quoted(key)
	if err != nil {
		called()
		return err
	}
	s.key, s.called, s.known = key, called, asked.New(found)
	s.request.Header.Set(idempotency.KeyHeader, value)
	return nil
}

// limit finds out when the request has to be given up.
func (s *sending) limit(r *http.Request) {
	deadline, ok := r.Context().Deadline()
	if !ok {
		return
	}
	s.deadline = deadline
	if r.Cancel != nil { //nolint:staticcheck // http.Client sets it with a Timeout, and nothing else of the request shows that
		left := time.Until(deadline)
		s.deadline = deadline.Add(-min(left/10, time.Second))
	}
}

// target names the operation of a request among the calls of a handler. An IP address and its port
// can be others in each attempt, and do not count, as in a fingerprint ([idempotency.Parts]). On
// this machine a port is a service: a proxy of the process.
func target(r *http.Request) string {
	host, port := strings.ToLower(r.URL.Hostname()), r.URL.Port()
	switch ip := net.ParseIP(host); {
	case ip.IsLoopback(), host == "localhost":
		host = ""
	case ip != nil:
		host, port = "", ""
	}
	if port != "" && port != map[string]string{"http": "80", "https": "443"}[r.URL.Scheme] {
		host += ":" + port
	}
	return r.Method + " " + host + r.URL.EscapedPath()
}

// failed returns the error of the request.
func (s *sending) failed(res *http.Response, err error) error { return s.failure(&s.known, res, err) }

func (s *sending) failure(known *asked.Request, res *http.Response, err error) error {
	if known.Unknown() && !errors.Is(err, idempotency.ErrOutcomeUnknown) {
		err = fmt.Errorf("%w: %w", idempotency.ErrOutcomeUnknown, err)
	}
	later, _ := retryAfter(res)
	if later == 0 {
		later = s.grown()
	}
	return &idempotency.RequestError{Key: s.key, Tries: s.tries, Status: s.status, Reason: known.Reason(), RetryAfter: later, Err: err}
}
