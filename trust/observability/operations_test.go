//go:build long

package observability

import (
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	client "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/observe"
	otellock "github.com/interlock-go/interlock/otel"
)

// documented has the lines of docs/operations.md.
func documented(mux *http.ServeMux) {
	reader, err := prometheus.New()
	if err != nil {
		log.Fatal(err)
	}
	otel.SetMeterProvider(metric.NewMeterProvider(metric.WithReader(reader)))
	mux.Handle("/metrics", promhttp.HandlerFor(client.DefaultGatherer, promhttp.HandlerOpts{EnableOpenMetrics: true}))
}

func TestTheDocumentedHandlerLeadsFromASlowBucketToATrace(t *testing.T) {
	mux := http.NewServeMux()
	documented(mux)
	o, err := otellock.New()
	if err != nil {
		t.Fatal(err)
	}
	traceID := trace.TraceID{1, 2, 3}
	ctx := trace.ContextWithSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: traceID, SpanID: trace.SpanID{4}, TraceFlags: trace.FlagsSampled,
	}))
	_, observation := o.Start(ctx, observe.Operation{Rule: "rare", Keys: []string{"k"}})
	observation.Acquired(observe.Acquired{Err: core.ErrHeld})

	// What Prometheus accepts, and a client that knows the older format alone.
	for accept, want := range map[string]bool{
		"application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3": true,
		"text/plain;version=0.0.4": false,
	} {
		req := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
		req.Header.Set("Accept", accept)
		answer := httptest.NewRecorder()
		mux.ServeHTTP(answer, req)
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		bucket := regexp.MustCompile(`(?m)^interlock_acquire_duration_seconds_bucket\{.*$`).FindAllString(string(text), -1)
		if len(bucket) == 0 {
			t.Fatalf("%s: no buckets of interlock_acquire_duration_seconds in\n%s", accept, text)
		}
		if got := strings.Contains(strings.Join(bucket, ""), `trace_id="`+traceID.String()+`"`); got != want {
			t.Errorf("%s: a bucket has an exemplar of the trace: %v, want %v; the first is\n%s", accept, got, want, bucket[0])
		}
	}
}
