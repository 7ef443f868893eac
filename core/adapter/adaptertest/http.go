package adaptertest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/internal/testkit"
)

// Pattern is the route in a framework's syntax: Pattern("{", "}") for http.ServeMux,
// Pattern(":", "") for gin and echo.
func (s *Service) Pattern(before, after string) string {
	return strings.NewReplacer("{", before, "}", after).Replace(s.route())
}

// route is the path; its default has something after the last parameter, so that
// this can be empty at all.
func (s *Service) route() string { return cmp.Or(s.Route, "/{id}/call") }

// InContext returns a request under a context: itself if it is its own. The server
// cleans up after the request that it has made, and not after a copy.
func InContext(ctx context.Context, r *http.Request) *http.Request {
	if r.Context() == ctx {
		return r
	}
	return r.WithContext(ctx)
}

// statuses are the statuses of the results.
var statuses = map[Result]int{OK: 201, Declined: 403, Busy: 429, Failed: 500}

// HandleHTTP runs the handler of a framework on net/http. It returns ErrHandler
// for the framework to answer; where the context has ended the client has gone, or
// the layers will answer.
func (s *Service) HandleHTTP(w http.ResponseWriter, r *http.Request, param func(name string) string) error {
	send := func(text string) error { _, err := io.WriteString(w, text); return err }
	err := s.Handle(r.Context(), &Call{
		Param: param,
		Amount: func() (int64, error) {
			var payment struct{ Amount int64 }
			err := json.NewDecoder(r.Body).Decode(&payment)
			return payment.Amount, err
		},
		Send: send,
		Answer: func(result Result, text string) error {
			w.Header().Set("Content-Type", "text/plain")
			w.WriteHeader(statuses[result])
			return send(text)
		},
		W: w,
		R: r,
	})
	if errors.Is(err, ErrHandler) {
		return err
	}
	return nil
}

// ServeHTTP starts a server for a handler that has the service at Pattern, for
// every method, and returns its client. A panic that comes out of the handler is
// answered with 500 and the value of the panic.
func (s *Service) ServeHTTP(t testing.TB, h http.Handler) *HTTPClient {
	t.Helper()
	s.Start()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if thrown := recover(); thrown != nil {
				w.WriteHeader(http.StatusInternalServerError)
				_, _ = fmt.Fprint(w, thrown)
			}
		}()
		if s.ReadBody {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return // the client has left
			}
			// The server sees a client leave once it has seen the body's end.
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		if s.InFront != nil {
			s.InFront(w, r)
		}
		h.ServeHTTP(w, r)
	}))
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0) // a second answer is on purpose
	if s.HTTP2 {
		srv.EnableHTTP2 = true
		srv.StartTLS()
	} else {
		srv.Start()
	}
	t.Cleanup(srv.Close)
	srv.Client().CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &HTTPClient{s, srv}
}

// HTTPClient is the Client of all frameworks on net/http.
type HTTPClient struct {
	service *Service
	Server  *httptest.Server
}

func (c *HTTPClient) send(ctx context.Context, req Request) (*http.Response, error) {
	path := "/" + req.Path
	if req.Path == "" {
		segments := strings.Split(c.service.route(), "/")
		for i, segment := range segments {
			if name, ok := strings.CutPrefix(segment, "{"); ok {
				segments[i] = url.PathEscape(req.Values[strings.TrimSuffix(name, "}")])
			}
		}
		path = strings.Join(segments, "/")
	}
	// An empty strings.Reader is sent as no body at all.
	r, err := http.NewRequestWithContext(ctx, cmp.Or(req.Method, http.MethodPost), c.Server.URL+path, strings.NewReader(req.Body))
	if err != nil {
		return nil, err
	}
	for _, h := range req.Header {
		r.Header.Add(h[0], h[1])
	}
	return c.Server.Client().Do(r)
}

// Call implements Client.
func (c *HTTPClient) Call(ctx context.Context, req Request) (o Outcome) {
	before := c.service.Runs()
	defer func() { o.Ran = c.service.Runs() > before }()
	resp, err := c.send(ctx, req)
	if err != nil {
		return Outcome{Detail: err.Error()}
	}
	a, err := testkit.Read(resp)
	if err != nil {
		return Outcome{Detail: err.Error()}
	}
	o = Outcome{
		OK: a.Status < 300, Code: strconv.Itoa(a.Status), Text: a.Body,
		Replayed: a.Header.Get(idempotency.ReplayedHeader) != "",
	}
	if after := a.Header.Get("Retry-After"); after != "" {
		o.Retry = after + "s"
	}
	// A stored answer is the handler's own, also if it looks like a refusal.
	if p, ok := a.Problem(); ok && !o.Replayed {
		o.Reason, o.Domain, o.Detail, o.Text = p.Reason, "interlock", p.Detail, ""
	}
	if why, ran := strings.CutSuffix(a.Header.Get(idempotency.ResultHeader), ";ran"); ran && o.Reason == "" {
		o.Reason, o.Domain = why, "interlock"
	}
	return o
}

// Open implements Client.
func (c *HTTPClient) Open(ctx context.Context, req Request) (Stream, error) {
	resp, err := c.send(ctx, req)
	if err != nil {
		return nil, err
	}
	return &httpStream{resp, bufio.NewReader(resp.Body)}, nil
}

type httpStream struct {
	resp  *http.Response
	lines *bufio.Reader
}

func (s *httpStream) Next() (string, error) {
	line, err := s.lines.ReadString('\n')
	return strings.TrimSuffix(line, "\n"), err
}

func (s *httpStream) Close() { _ = s.resp.Body.Close() }
