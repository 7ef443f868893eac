package httplock

import (
	"bytes"
	"encoding/json"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/httpx"
)

const (
	// maxProblem is how much of a response is read to learn what it means.
	maxProblem = 64 << 10

	minPause = 100 * time.Millisecond
	maxPause = 5 * time.Second
	// maxRetryAfter is the longest Retry-After that a request waits for.
	maxRetryAfter = time.Minute
)

// answer is what a try says of the request.
type answer struct {
	again   bool  // the request can be sent again
	settles bool  // the endpoint has answered, and the tries before do not matter
	err     error // the result, in place of the response
}

// judge says what a try means, and notes whether it may have been carried out.
func (s *sending) judge(res *http.Response, err error) answer {
	if err != nil {
		return answer{again: true}
	}
	if res.Header.Get("Idempotent-Replayed") == "true" {
		failed := res.StatusCode >= http.StatusInternalServerError // it may have had its effect before
		s.unknown = s.unknown || failed
		return answer{settles: !failed}
	}
	switch why, status := problemOf(res), res.StatusCode; {
	case why == reason.OutcomeUnknown:
		return answer{err: idempotency.ErrOutcomeUnknown}
	case why == reason.ResponseUnavailable:
		return answer{err: idempotency.ErrResponseUnavailable}
	case why == reason.KeyReused:
		return answer{err: idempotency.ErrKeyReused}
	case status == http.StatusConflict && (why == reason.InFlight || why == "" && res.Header.Get("Retry-After") != ""):
		s.unknown = true
		return answer{again: true}
	case status == http.StatusLocked, status == http.StatusTooManyRequests:
		return answer{again: true}
	case status >= http.StatusInternalServerError:
		// A problem of the endpoint's says that nothing was done, but for two.
		s.unknown = s.unknown || why == "" || why == reason.Lost || why == reason.MaxHold
		return answer{again: true}
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusProxyAuthRequired:
		return answer{} // in front of the endpoint, which was not asked
	}
	return answer{settles: true}
}

// problemOf returns the reason of a refusal by this module, or "". The body of the response
// can be read afterwards as before.
func problemOf(res *http.Response) reason.Reason {
	if res.StatusCode < http.StatusBadRequest || !strings.HasPrefix(res.Header.Get("Content-Type"), httpx.ContentType) {
		return ""
	}
	b, err := io.ReadAll(io.LimitReader(res.Body, maxProblem))
	var rest io.Reader = res.Body
	if err != nil {
		rest = failing{err}
	}
	res.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(b), rest), res.Body}
	var problem struct {
		Type string `json:"type"`
	}
	_ = json.Unmarshal(b, &problem) // a problem that cannot be read has no type
	why, ours := strings.CutPrefix(problem.Type, "urn:interlock:problem:")
	if !ours {
		return ""
	}
	return reason.Reason(why)
}

// failing is the rest of a body that has broken off.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// pause returns how long to wait before the next try, and whether there is to be a next try.
func (s *sending) pause(res *http.Response) (time.Duration, bool) {
	d, asked := retryAfter(res)
	if !asked {
		d = min(minPause<<min(s.tries-1, 16), maxPause)
		d -= mathrand.N(d/2 + 1) //nolint:gosec // it spreads requests, and protects nothing
	}
	if d > maxRetryAfter {
		return 0, false
	}
	deadline, bounded := s.request.Context().Deadline()
	return d, !bounded || time.Until(deadline) > d
}

// retryAfter returns what the header Retry-After asks for (RFC 9110, 10.2.3). A date that
// has passed and 0 ask for nothing.
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
