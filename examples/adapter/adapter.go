package returnlock

import (
	"context"
	"maps"
	"net/http"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
)

// Guard runs the handler under a rule.
func Guard(rule *core.Guard) Middleware {
	return func(next Handler) Handler {
		return func(ctx context.Context, r *Request) (resp Response) {
			if refusal := rule.Do(ctx, request{ctx, r}, run(next, r, &resp)); refusal != nil {
				return refused(refusal)
			}
			return resp
		}
	}
}

// run runs the handler, and reports whether its response may leave.
func run(next Handler, r *Request, resp *Response) func(context.Context) bool {
	return func(ctx context.Context) (answered bool) {
		*resp = next(ctx, r)
		return resp.Status != 0 && adapter.BeginAnswer(ctx, resp.Status < http.StatusBadRequest)
	}
}

// refused is a refusal as a response.
func refused(refusal *core.Refusal) (resp Response) {
	resp.Header = make(http.Header)
	resp.Status, resp.Body = refusal.HTTP(resp.Header.Set)
	return resp
}

// request is the core.Request of the framework.
type request struct {
	ctx context.Context // of the middleware, which may have values of those in front
	r   *Request
}

func (q request) Route() (string, bool)       { return q.r.Pattern, true }
func (q request) Header(name string) []string { return q.r.Header.Values(name) }
func (q request) Query(name string) []string  { return q.r.URL.Query()[name] }
func (q request) Value(key any) any           { return q.ctx.Value(key) }
func (q request) Native() any                 { return q.r }

func (q request) Param(name string) (string, error) {
	if v, ok := q.r.Params[name]; ok {
		return v, nil
	}
	return "", adapter.ErrNoParam
}

func (q request) Body(limit int64) ([]byte, error) {
	if int64(len(q.r.Payload)) > limit {
		return nil, adapter.ErrBodyLimit
	}
	return q.r.Payload, nil
}

// ReadsOnly is for core.ShareReads.
func (q request) ReadsOnly() bool {
	return q.r.Method == http.MethodGet || q.r.Method == http.MethodHead
}

// Idempotent runs the handler once for each Idempotency-Key.
func Idempotent(engine *idempotency.Engine) Middleware {
	return func(next Handler) Handler {
		return func(ctx context.Context, r *Request) (resp Response) {
			verdict := engine.Do(ctx, call{request{ctx, r}}, endpoint.Handler{
				Run: func(ctx context.Context, attempt endpoint.Attempt) (endpoint.Response, bool) {
					resp = next(ctx, r)
					if int64(len(resp.Body)) > attempt.Limit() {
						attempt.TooLarge(resp.Status) // the verdict says what is sent
					}
					return endpoint.Response{Status: resp.Status, Header: resp.Header, Body: resp.Body}, resp.Status != 0
				},
				Pass: run(next, r, &resp),
			})
			switch {
			case verdict.Refusal != nil:
				return refused(verdict.Refusal)
			case verdict.Replay != nil:
				resp = Response{verdict.Replay.Status, verdict.Replay.Header, verdict.Replay.Body}
				return with(resp, idempotency.ReplayedHeader, "true")
			}
			return with(resp, idempotency.ResultHeader, idempotency.Result(verdict.Inside))
		}
	}
}

// with is a response with another field.
func with(resp Response, name, value string) Response {
	resp.Header = maps.Clone(resp.Header)
	if resp.Header == nil {
		resp.Header = make(http.Header)
	}
	resp.Header.Set(name, value)
	return resp
}

// call is the endpoint.Call of the framework.
type call struct{ request }

func (c call) Protocol() string { return endpoint.HTTP }

func (c call) Key() (string, error) {
	return endpoint.ParseKey(c.r.Header.Values(idempotency.KeyHeader))
}

func (c call) Target() (method, path, query string) {
	return c.r.Method, c.r.URL.EscapedPath(), c.r.URL.RawQuery
}

func (c call) Origin() (host, path, query string) {
	return c.r.Host, c.r.URL.EscapedPath(), c.r.URL.RawQuery
}
