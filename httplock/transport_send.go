package httplock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/asked"
)

// sending is a request on its way.
type sending struct {
	*Transport
	request  *http.Request // with its key; each try is a clone
	key      string
	called   func()    // the call of the handler has ended
	deadline time.Time // zero: there is none
	body     func() (io.ReadCloser, error)

	known    asked.Request
	patience asked.Patience
	tries    int
	status   int // of the last response
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
	for {
		try, res, a, err := s.once()
		if try == nil { // its body cannot be had
			return nil, s.failed(nil, err)
		}
		step, pause, ok := s.known.After(a), time.Duration(0), false
		noteStuck(s.request.Context(), a)
		if s.patience.Left(a) && step.Again && !s.inTheWay() && s.request.Context().Err() == nil {
			pause, ok = s.pause(res)
		}
		if s.OnTry != nil {
			s.OnTry(Try{Request: try, Number: s.tries, Status: s.status, Err: err, Pause: pause})
		}
		switch {
		case ok:
		case res == nil:
			return nil, s.failed(nil, err)
		case step.Err != nil:
			discard(res)
			return nil, s.failed(res, step.Err)
		default:
			return res, nil
		}
		discard(res)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-s.request.Context().Done():
			timer.Stop()
			return nil, s.failed(res, context.Cause(s.request.Context()))
		}
	}
}

// inTheWay reports whether the lock of the request is held while its caller holds a lock, which
// others wait for.
func (s *sending) inTheWay() bool {
	held := s.status == http.StatusLocked || s.status == http.StatusTooManyRequests || asked.InTheWay(s.known.Reason())
	return held && !s.RetryHeld && core.HeldFor(s.request.Context()) != ""
}

// begin returns the context of a try.
func (s *sending) begin() (context.Context, context.CancelFunc) {
	if s.deadline.IsZero() {
		return context.WithCancel(s.request.Context())
	}
	return context.WithDeadline(s.request.Context(), s.deadline)
}

// once sends the request once. The try is nil if nothing was sent, because its body cannot be had.
func (s *sending) once() (try *http.Request, res *http.Response, a asked.Answer, err error) {
	body, err := s.body()
	if err != nil {
		return nil, nil, a, fmt.Errorf("its body cannot be read again: %w", err)
	}
	s.tries++
	s.status = 0
	ctx, cancel := s.begin()
	var looked, found atomic.Int32
	try = s.request.Clone(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { looked.Add(1) },
		GotConn: func(httptrace.GotConnInfo) { found.Add(1) },
	}))
	try.Body = body
	res, err = s.base().RoundTrip(try)
	if found.Load() > 1 {
		// net/http sends a request with an Idempotency-Key again by itself if a connection that
		// was used before breaks. The outcome on the first connection is unknown.
		s.known.After(asked.Answer{Kind: asked.Unanswered})
	}
	if err != nil {
		cancel()
		if looked.Load() > 0 && found.Load() == 0 { // a transport that finds no connection has sent nothing
			return try, nil, asked.Answer{Kind: asked.Unsent}, err
		}
		return try, nil, asked.Answer{Kind: asked.Unanswered}, err
	}
	s.status = res.StatusCode
	if res.StatusCode == http.StatusSwitchingProtocols { // its body is the connection, and ends with the request's context
		context.AfterFunc(s.request.Context(), cancel)
	} else {
		res.Body = &answer{ReadCloser: res.Body, sending: s, end: cancel}
	}
	return try, res, s.meaning(res), nil
}

// answer is the body of a response. The caller has the answer when it has read all of it.
type answer struct {
	io.ReadCloser
	*sending
	end    context.CancelFunc // of the try
	closed atomic.Bool
}

// Read returns a [idempotency.RequestError] if the response breaks off.
func (a *answer) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	if err == nil || a.closed.Load() {
		return n, err
	}
	a.end()
	if errors.Is(err, io.EOF) {
		return n, err
	}
	known := a.known // a copy, since Read may be called by two goroutines
	if a.status < http.StatusBadRequest {
		known.After(asked.Answer{Kind: asked.Unanswered})
	}
	return n, a.failure(&known, nil, fmt.Errorf("the response breaks off: %w", err))
}

// Close ends the try.
func (a *answer) Close() error {
	a.closed.Store(true)
	err := a.ReadCloser.Close()
	a.end()
	return err
}

const (
	// maxRest bounds the rest of a response that is read so that its connection can be used again.
	maxRest = 64 << 10
	// maxRestWait bounds the time for that.
	maxRestWait = time.Second
)

// discard reads the rest of a short response, so that its connection can be used again.
func discard(res *http.Response) {
	if res == nil {
		return
	}
	if a, ok := res.Body.(*answer); ok {
		defer time.AfterFunc(maxRestWait, a.end).Stop()
	}
	_, _ = io.CopyN(io.Discard, res.Body, maxRest)
	_ = res.Body.Close()
}
