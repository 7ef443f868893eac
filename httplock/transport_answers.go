package httplock

import (
	"context"
	mathrand "math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/asked"
)

const (
	minPause = 100 * time.Millisecond
	maxPause = 5 * time.Second
	// maxRetryAfter is the longest Retry-After that a request waits for.
	maxRetryAfter = time.Minute
)

// meaning translates a response.
func (t *Transport) meaning(res *http.Response) asked.Answer {
	mark, status := res.Header.Get(idempotency.ResultHeader), res.StatusCode
	refusal, refused := asked.Marked(mark)
	a := asked.Answer{Status: "status " + res.Status}
	switch {
	case isReplay(res):
		a.Kind = asked.Stored
		if status >= http.StatusInternalServerError { // it may have had its effect before
			a.Kind = asked.FailedForGood
		}
	case status < http.StatusMultipleChoices:
		a.Kind = asked.Success
	case refused && status >= http.StatusBadRequest:
		a.Kind, a.Reason, a.Ran = asked.Refused, refusal.Reason, refusal.Ran
	case status >= http.StatusInternalServerError:
		a.Kind = asked.Failed
	case mark == "" && status == http.StatusConflict && res.Header.Get("Retry-After") != "": // of an endpoint of another make
		a.Kind, a.Reason = asked.Refused, reason.InFlight
	case status == http.StatusLocked, status == http.StatusTooManyRequests:
		a.Kind = asked.Busy
	case mark == "" && (t.Answered == nil || !t.Answered(res)):
		a.Kind = asked.Foreign
	case mark != "" && isNotNow(status):
		a.Kind = asked.NotNow
	default:
		a.Kind = asked.Stored
	}
	return a
}

// noteStuck notes for the request of a handler that its own callers keep its call from a lock.
func noteStuck(ctx context.Context, a asked.Answer) {
	if a.Reason == reason.HeldByCaller {
		adapter.NoteStuck(ctx)
	}
}

// isReplay reports whether a response is marked as a stored one. Behind a grpc-gateway the field
// has a prefix.
func isReplay(res *http.Response) bool {
	return res.Header.Get(idempotency.ReplayedHeader) == "true" || res.Header.Get("Grpc-Metadata-"+idempotency.ReplayedHeader) == "true"
}

// isNotNow reports whether an idempotent endpoint gives the key up after such an answer.
func isNotNow(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly:
		return true
	}
	return false
}

// pause returns how long to wait before the next try, and whether there is to be a next try.
// A server that asks for a time sets the least: it does not know when it will be otherwise.
func (s *sending) pause(res *http.Response) (time.Duration, bool) {
	d := s.grown()
	d -= mathrand.N(d/2 + 1) //nolint:gosec // it spreads requests, and protects nothing
	if told, ok := retryAfter(res); ok {
		d = max(d, told)
	}
	if d > maxRetryAfter {
		return 0, false
	}
	return d, s.deadline.IsZero() || time.Until(s.deadline) > d
}

// grown is the pause after the tries so far, if no server asks for another.
func (s *sending) grown() time.Duration { return min(minPause<<min(max(s.tries-1, 0), 16), maxPause) }

// retryAfter returns the wait that the header Retry-After asks for (RFC 9110, 10.2.3). A date
// that has passed and 0 ask for nothing.
func retryAfter(res *http.Response) (time.Duration, bool) {
	if res == nil {
		return 0, false
	}
	value := res.Header.Get("Retry-After")
	if at, err := http.ParseTime(value); err == nil {
		d := time.Until(at)
		return d, d > 0
	}
	seconds, err := strconv.ParseUint(value, 10, 31)
	return time.Duration(seconds) * time.Second, err == nil && seconds > 0 //nolint:gosec // 31 bits
}
