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

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/internal/testkit"
)

// oneRecord is a Store with one record, in memory: only the middleware is measured.
type oneRecord struct {
	record.Store
	response []byte
}

func (s *oneRecord) Claim(context.Context, record.ClaimRequest) (record.ClaimReply, error) {
	if s.response != nil {
		return record.ClaimReply{State: record.StateCompleted, Response: string(s.response)}, nil
	}
	return record.ClaimReply{State: record.StateGranted, Generation: 1, Sent: time.Now()}, nil
}

func (s *oneRecord) Commit(_ context.Context, r record.CommitRequest) (record.CommitReply, error) {
	s.response = r.Response
	return record.CommitReply{State: record.StateGranted}, nil
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
	w    testkit.Deaf
}

func newSender(tb testing.TB, body string) *sender {
	return &sender{Request: request(tb, ""), all: []byte(body), w: testkit.Deaf{Headers: http.Header{}}}
}

func (s *sender) send(h http.Handler) {
	s.body.Reset(s.all)
	s.ContentLength, s.Body = int64(len(s.all)), io.NopCloser(&s.body)
	clear(s.w.Headers)
	h.ServeHTTP(s.w, s.Request)
}

const long = 64 << 10

// One buffer is allocated; the rest of the time is SHA-256.
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
