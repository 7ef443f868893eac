package idempotency_test

import (
	"context"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/memstore"
)

func TestWhatIsStoredAndWhatIsReleased(t *testing.T) {
	released := []int{307, 308, 401, 402, 408, 409, 423, 425, 429, 499, 500, 502, 503, 599}
	kept := []int{200, 201, 204, 301, 302, 303, 304, 400, 403, 404, 410, 412, 422, 451}
	grpcReleased := []int{1, 2, 4, 8, 10, 13, 14, 15, 16}
	grpcKept := []int{0, 3, 5, 6, 7, 9, 11, 12}
	both := func(a, b []int) []int { return slices.Concat(a, b) }
	mark := func(h handler) handler {
		return func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			if err := idempotency.MarkEffect(ctx); err != nil {
				t.Error(err)
			}
			return h(ctx, a)
		}
	}
	releaseInvalid := []idempotency.Option{idempotency.ReleaseInvalid()}
	cases := map[string]struct {
		protocol string
		opts     []idempotency.Option
		mark     bool
		statuses []int
		stored   bool
	}{
		"released":             {endpoint.HTTP, nil, false, released, false},
		"kept":                 {endpoint.HTTP, nil, false, kept, true},
		"marked":               {endpoint.HTTP, nil, true, both(released, kept), true},
		"store all":            {endpoint.HTTP, []idempotency.Option{idempotency.StoreAll()}, false, both(released, kept), true},
		"strict, failures":     {endpoint.HTTP, []idempotency.Option{idempotency.Strict()}, false, []int{499, 500, 503}, true},
		"strict, not carried":  {endpoint.HTTP, []idempotency.Option{idempotency.Strict()}, false, []int{307, 308, 401, 402, 409, 423, 429}, false},
		"invalid, released":    {endpoint.HTTP, releaseInvalid, false, []int{400, 422}, false},
		"others, kept":         {endpoint.HTTP, releaseInvalid, false, []int{200, 404, 412}, true},
		"invalid, marked":      {endpoint.HTTP, releaseInvalid, true, []int{400, 422}, true},
		"gRPC invalid":         {endpoint.GRPC, releaseInvalid, false, []int{3, 11}, false},
		"gRPC others":          {endpoint.GRPC, releaseInvalid, false, []int{0, 9}, true},
		"gRPC released":        {endpoint.GRPC, nil, false, grpcReleased, false},
		"gRPC kept":            {endpoint.GRPC, nil, false, grpcKept, true},
		"gRPC marked":          {endpoint.GRPC, nil, true, grpcReleased, true},
		"gRPC strict, failure": {endpoint.GRPC, []idempotency.Option{idempotency.Strict()}, false, []int{1, 2, 4, 13, 14, 15}, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				e := w.engine(c.opts...)
				for _, status := range c.statuses {
					n := 0
					h := answers(status, &n)
					if c.mark {
						h = mark(h)
					}
					q := post(fmt.Sprint("k", status))
					q.protocol = c.protocol
					w.want(serve(w.Context(), e, q, h), fmt.Sprintf("%d run 1", status))
					second := fmt.Sprintf("%d run 2", status)
					if c.stored {
						second = fmt.Sprintf("replay %d run 1", status)
					}
					w.want(serve(w.Context(), e, q, h), second)
				}
			})
		})
	}
}

func TestAPanicIsReleasedOrStoredAndPassesThrough(t *testing.T) {
	for name, c := range map[string]struct {
		mark  bool
		exit  bool
		opts  []idempotency.Option
		again string
	}{
		"unmarked":  {again: "200 run 1"},
		"marked":    {mark: true, again: `replay 500 {"type":"about:blank","title":"Internal Server Error","status":500}`},
		"strict":    {opts: []idempotency.Option{idempotency.Strict()}, again: `replay 500 {"type":"about:blank","title":"Internal Server Error","status":500}`},
		"store all": {opts: []idempotency.Option{idempotency.StoreAll()}, again: `replay 500 {"type":"about:blank","title":"Internal Server Error","status":500}`},
		"Goexit":    {exit: true, again: "200 run 1"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				e := w.engine(c.opts...)
				value := any("not run")
				done := make(chan struct{})
				go func() {
					defer close(done)
					defer func() { value = recover() }()
					serve(w.Context(), e, post("k"), func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
						if c.mark {
							if err := idempotency.MarkEffect(ctx); err != nil {
								t.Error(err)
							}
						}
						if c.exit {
							runtime.Goexit() // as t.FailNow in a handler does
						}
						panic("bank on fire")
					})
				}()
				<-done
				if value != any("bank on fire") && !c.exit {
					t.Errorf("recovered %v", value)
				}
				n := 0
				w.want(serve(w.Context(), e, post("k"), answers(200, &n)), c.again)
			})
		})
	}
}

func TestAnAnswerThatIsTooLargeIsNotStored(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine(idempotency.MaxResponse(100))
		big := func(status int, early bool, before func()) handler {
			return func(_ context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
				before()
				r := endpoint.Response{Status: status, Body: make([]byte, 101)}
				if early { // the capture noticed, and has sent its bytes
					if first := a.TooLarge(status); a.TooLarge(status) != first {
						t.Error("TooLarge changes its mind")
					}
					r.Body = nil
				}
				return r, true
			}
		}
		for _, early := range []bool{false, true} {
			key := fmt.Sprint("k", early)
			n := 0
			got := serve(w.Context(), e, post(key), big(200, early, func() {}))
			if !strings.HasPrefix(got, "200 ") {
				t.Errorf("early %v: %q", early, got)
			}
			w.want(serve(w.Context(), e, post(key), answers(200, &n)), "idempotency-response-unavailable")
			serve(w.Context(), e, post(key+"-500"), big(500, early, func() {}))
			w.want(serve(w.Context(), e, post(key+"-500"), answers(200, &n)), "200 run 1")
			// Another took over before the first byte: nothing of ours may leave.
			w.want(serve(w.Context(), e, post(key+"-lost"), big(200, early, func() { w.store.TakeClaims(time.Hour) })), "ran, then idempotency-in-flight")
			w.down(memstore.Commit)
			serve(w.Context(), e, post(key+"-down"), big(200, early, func() {}))
			w.store.Intercept(nil)
			<-time.After(5 * time.Second)
			w.want(serve(w.Context(), e, post(key+"-down"), answers(200, &n)), "idempotency-response-unavailable")
		}
		w.want(serve(w.Context(), e, post("fits"), func(context.Context, endpoint.Attempt) (endpoint.Response, bool) {
			return endpoint.Response{Status: 200, Body: []byte(strings.Repeat("x", 100))}, true
		}), "200 "+strings.Repeat("x", 100))
		n := 0
		w.want(serve(w.Context(), e, post("fits"), answers(200, &n)), "replay 200 "+strings.Repeat("x", 100))
	})
}

func TestOnlyTheResponsesOwnHeadersAreLeftOut(t *testing.T) {
	header := map[string][]string{
		"Content-Type": {"text/plain"}, "Location": {"/payments/1"}, "Link": {"<a>", "<b>, <c>"}, "Empty": {""},
		"Set-Cookie": {"s=1"}, "Date": {"now"}, "Content-Length": {"3"}, "Connection": {"close, X-Hop", "x-other-hop"},
		"X-Hop": {"1"}, "X-Other-Hop": {"1"}, "Transfer-Encoding": {"chunked"}, "Traceparent": {"00-1"},
		"X-Request-Id": {"r"}, "RateLimit-Remaining": {"9"}, "X-Ratelimit-Limit": {"10"}, "Idempotent-Replayed": {"true"},
	}
	inBubble(t, func(w *world) {
		e := w.engine()
		replay := func(e *idempotency.Engine, key string) (r *endpoint.Response) {
			h := endpoint.Handler{Run: func(context.Context, endpoint.Attempt) (endpoint.Response, bool) {
				return endpoint.Response{Status: 201, Header: header, Trailer: map[string][]string{"X-Sum": {"1"}, "Date": {"x"}}}, true
			}}
			e.Do(w.Context(), post(key), h)
			return e.Do(w.Context(), post(key), h).Replay
		}
		got := replay(e, "k")
		if want := map[string][]string{
			"Content-Type": {"text/plain"}, "Location": {"/payments/1"}, "Link": {"<a>", "<b>, <c>"}, "Empty": {""},
			"Content-Length": {"3"}, // for the adapter, which says how long the replay is
		}; !reflect.DeepEqual(got.Header, want) {
			t.Errorf("header %v", got.Header)
		}
		if want := map[string][]string{"X-Sum": {"1"}}; !reflect.DeepEqual(got.Trailer, want) {
			t.Errorf("trailer %v", got.Trailer)
		}
		got = replay(e.With(idempotency.ReplayHeaders("location", "date")), "l")
		if want := map[string][]string{"Location": {"/payments/1"}, "Date": {"now"}, "Content-Length": {"3"}}; !reflect.DeepEqual(got.Header, want) {
			t.Errorf("allow-list: %v", got.Header)
		}
	})
}
