package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
)

// problem is the type of problem details, and its last part the reason.
const problem = "urn:interlock:problem:"

// Pattern is the route in a framework's syntax: Pattern("{", "}") is that of
// http.ServeMux, Pattern(":", "") that of gin and echo.
func (s *Service) Pattern(before, after string) string {
	var path strings.Builder
	for _, name := range s.Params {
		path.WriteString("/" + before + name + after)
	}
	// Something after the last parameter, so that it can be empty at all.
	return path.String() + "/call"
}

// HandleHTTP runs the handler of a framework on net/http. It returns ErrHandler
// for the framework to answer; where the context has ended there is nobody, or
// the locks will answer.
func (s *Service) HandleHTTP(w http.ResponseWriter, r *http.Request, param func(name string) string) error {
	err := s.Handle(r.Context(), &Call{
		Param: param,
		Send:  func(text string) error { _, err := io.WriteString(w, text); return err },
		W:     w,
		R:     r,
	})
	if errors.Is(err, ErrHandler) {
		return err
	}
	return nil
}

// ServeHTTP starts a server for a handler that has the service at POST Pattern,
// and returns its client.
func (s *Service) ServeHTTP(t testing.TB, h http.Handler) Client {
	t.Helper()
	s.start()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.ReadBody {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return // the client has left
			}
			// The server sees a client leave once it has seen the body's end.
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		h.ServeHTTP(w, r)
	}))
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0) // panics are on purpose
	if s.HTTP2 {
		srv.EnableHTTP2 = true
		srv.StartTLS()
	} else {
		srv.Start()
	}
	t.Cleanup(srv.Close)
	client := srv.Client()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &httpClient{s, srv.URL, client}
}

type httpClient struct {
	service *Service
	url     string
	http    *http.Client
}

func (c *httpClient) send(ctx context.Context, req Request) (*http.Response, error) {
	path := req.Path
	if path == "" {
		for _, name := range c.service.Params {
			path += url.PathEscape(req.Values[name]) + "/"
		}
		path += "call"
	}
	// An empty strings.Reader is sent as no body at all.
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/"+path, strings.NewReader(req.Body))
	if err != nil {
		return nil, err
	}
	for _, h := range req.Header {
		r.Header.Add(h[0], h[1])
	}
	return c.http.Do(r)
}

func (c *httpClient) Call(ctx context.Context, req Request) (o Outcome) {
	before := c.service.Runs()
	defer func() { o.Ran = c.service.Runs() > before }()
	resp, err := c.send(ctx, req)
	if err != nil {
		return Outcome{Detail: err.Error()}
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return Outcome{Detail: err.Error()}
	}
	o = Outcome{OK: resp.StatusCode < 300, Code: strconv.Itoa(resp.StatusCode), Text: string(body)}
	if after := resp.Header.Get("Retry-After"); after != "" {
		o.Retry = after + "s"
	}
	var p struct {
		Type, Detail string
		Status       int
	}
	// All the marks of a problem, or it is none of ours.
	if resp.Header.Get("Content-Type") != "application/problem+json" || json.Unmarshal(body, &p) != nil || p.Status != resp.StatusCode {
		return o
	}
	if reason, ours := strings.CutPrefix(p.Type, problem); ours {
		o.Reason, o.Domain, o.Detail, o.Text = reason, "interlock", p.Detail, ""
	}
	return o
}

func (c *httpClient) Open(ctx context.Context, req Request) (Stream, error) {
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
