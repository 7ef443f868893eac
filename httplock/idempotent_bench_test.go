package httplock_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/internal/httpx/httpxtest"
	"github.com/interlock-go/interlock/internal/idemtest"
	"github.com/interlock-go/interlock/internal/redistest"
)

// oneRecord is a Store with one record, in memory: what is left is the
// middleware.
type oneRecord struct {
	idempotency.Store
	response []byte
}

func (s *oneRecord) Claim(context.Context, idempotency.ClaimRequest) (idempotency.ClaimReply, error) {
	if s.response != nil {
		return idempotency.ClaimReply{State: idempotency.StateCompleted, Response: string(s.response)}, nil
	}
	return idempotency.ClaimReply{State: idempotency.StateGranted, Generation: 1, Sent: time.Now()}, nil
}

func (s *oneRecord) Commit(_ context.Context, r idempotency.CommitRequest) (idempotency.CommitReply, error) {
	s.response = r.Response
	return idempotency.CommitReply{State: idempotency.StateGranted}, nil
}

// replayer returns a handler that has answered, and replays the answer.
func replayer(tb testing.TB, body string) http.Handler {
	tb.Helper()
	engine, err := idempotency.New(&oneRecord{}, idempotency.Global())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = engine.Close(context.Background()) })
	h := httplock.Idempotent(engine)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "paid") }))
	h.ServeHTTP(httptest.NewRecorder(), request(tb, body))
	return h
}

// request is a payment with this body.
func request(tb testing.TB, body string) *http.Request {
	r := httptest.NewRequestWithContext(tb.Context(), http.MethodPost, "/payments", strings.NewReader(body))
	r.Header.Set("Idempotency-Key", "k")
	return r
}

// sender sends a request again and again without making it anew.
type sender struct {
	*http.Request
	body bytes.Reader
	all  []byte
	w    httpxtest.Deaf
}

func newSender(tb testing.TB, body string) *sender {
	return &sender{Request: request(tb, ""), all: []byte(body), w: httpxtest.Deaf{Headers: http.Header{}}}
}

func (s *sender) send(h http.Handler) {
	s.body.Reset(s.all)
	s.ContentLength, s.Body = int64(len(s.all)), io.NopCloser(&s.body)
	clear(s.w.Headers)
	h.ServeHTTP(s.w, s.Request)
}

const long = 64 << 10

// The allocations are those of one buffer; the rest of the time is SHA-256.
func BenchmarkFingerprint64KiB(b *testing.B) {
	h, s := replayer(b, strings.Repeat("x", long)), newSender(b, strings.Repeat("x", long))
	b.SetBytes(long)
	b.ReportAllocs()
	for b.Loop() {
		s.send(h)
	}
}

func TestABodyIsCopiedOnce(t *testing.T) {
	h, s := replayer(t, strings.Repeat("x", long)), newSender(t, strings.Repeat("x", long))
	const times = 200
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range times {
		s.send(h)
	}
	runtime.ReadMemStats(&after)
	if perRequest := (after.TotalAlloc - before.TotalAlloc) / times; perRequest > long*3/2 {
		t.Errorf("a body of %d bytes takes %d bytes", long, perRequest)
	}
}

// BenchmarkReplay4KiB compares a replay with what a service without idempotency
// would do at least: the same response, behind one GET.
func BenchmarkReplay4KiB(b *testing.B) {
	body := strings.Repeat("x", 4<<10)
	rdb := redistest.Shared(b).Client(b, func(o *redis.Options) { o.ContextTimeoutEnabled = true })
	handler := func(w http.ResponseWriter, text string) {
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, text)
	}
	get := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := rdb.Get(r.Context(), "response").Result()
		if err != nil {
			b.Error(err)
		}
		handler(w, text)
	})
	replay := httplock.Idempotent(idemtest.Engine(b))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { handler(w, body) }))
	if err := rdb.Set(b.Context(), "response", body, 0).Err(); err != nil {
		b.Fatal(err)
	}
	newSender(b, `{"amount":1}`).send(replay)
	for _, c := range []struct {
		name string
		h    http.Handler
	}{{"get", get}, {"replay", replay}} {
		// The handlers alone, one request at a time and many, and as a service
		// has them: behind net/http, with many clients.
		b.Run("alone/"+c.name, func(b *testing.B) {
			b.ReportAllocs()
			s := newSender(b, `{"amount":1}`)
			for b.Loop() {
				s.send(c.h)
			}
		})
		b.Run("many/"+c.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(32)
			b.RunParallel(func(pb *testing.PB) {
				s := newSender(b, `{"amount":1}`)
				for pb.Next() {
					s.send(c.h)
				}
			})
		})
		b.Run("served/"+c.name, func(b *testing.B) {
			b.ReportAllocs()
			srv := httpxtest.Serve(b, c.h)
			srv.Client().Transport.(*http.Transport).MaxIdleConnsPerHost = 64
			b.SetParallelism(32)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					a := httpxtest.Do(b, srv, http.MethodPost, "/payments", func(r *http.Request) {
						r.Header.Set("Idempotency-Key", "k")
						r.Body, r.ContentLength = io.NopCloser(strings.NewReader(`{"amount":1}`)), 12
					})
					if a.Status != http.StatusCreated || len(a.Body) != len(body) {
						b.Errorf("%d, %d bytes", a.Status, len(a.Body))
					}
				}
			})
		})
	}
}
