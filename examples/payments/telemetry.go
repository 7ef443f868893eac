package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/observe"
	otellock "github.com/interlock-go/interlock/otel"
)

// telemetry holds the observer of the locks and the tracer of the requests.
type telemetry struct {
	observer observe.Observer // of the locks
	tracer   trace.Tracer     // of the requests
	watch    func(l *core.Locker) (stop func())
	shutdown func(context.Context) error
}

// newTelemetry logs lost leases, and with -otel stdout prints the spans of the
// requests and, below them, of their locks: each as one line of JSON.
func newTelemetry(cfg config, log *slog.Logger, stdout io.Writer) (*telemetry, error) {
	if cfg.otel == "" {
		return &telemetry{
			observer: &watcher{log},
			tracer:   noop.NewTracerProvider().Tracer(""),
			watch:    func(*core.Locker) (stop func()) { return func() {} },
			shutdown: func(context.Context) error { return nil },
		}, nil
	}
	exporter, err := stdouttrace.New(stdouttrace.WithWriter(stdout))
	if err != nil {
		return nil, fmt.Errorf("spans: %w", err)
	}
	provider := sdktrace.NewTracerProvider(
		// In production, export spans in the background (WithBatcher). Here each span
		// is printed when it ends, and none is dropped.
		sdktrace.WithSyncer(exporter),
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", "payments"))),
	)
	// Metrics go to the global provider, which discards them unless the program sets
	// another: no flag prints them. trust/observability adds one to this program, for a
	// real Prometheus.
	observer, err := otellock.New(otellock.WithTracerProvider(provider), otellock.WithLogger(log))
	if err != nil {
		return nil, fmt.Errorf("spans: %w", err)
	}
	return &telemetry{observer, provider.Tracer("payments"), observer.Watch, provider.Shutdown}, nil
}

// request starts the span of a request. It replaces the instrumentation that exists for
// each framework (otelhttp, otelgin, otelecho, otelgrpc). Like that instrumentation it
// goes outside the lock's middleware, so that its span contains the lock's spans.
func (t *telemetry) request(ctx context.Context, frontend, name string) (context.Context, func()) {
	name = strings.TrimSpace(name) // without a route the method alone
	ctx, span := t.tracer.Start(ctx, name,
		trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attribute.String("payments.frontend", frontend)))
	return ctx, func() { span.End() }
}

// watcher receives the events of the locks from the locker. While serving, it logs only
// lost leases.
type watcher struct{ log *slog.Logger }

// Start implements observe.Observer.
func (w *watcher) Start(ctx context.Context, op observe.Operation) (context.Context, observe.Observation) {
	return ctx, observe.Observation{
		Lost: func(l core.Loss) {
			w.log.Warn("lease lost", "rule", op.Rule, "reason", l.Reason, "held", l.Held, "token", l.Token, "error", l.Err)
		},
	}
}
