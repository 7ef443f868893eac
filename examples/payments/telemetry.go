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
	otellock "github.com/interlock-go/interlock/otel"
)

// telemetry is how the program tells what its requests and their locks do.
type telemetry struct {
	observer core.Observer // of the locks
	tracer   trace.Tracer  // of the requests
	shutdown func(context.Context) error
}

// newTelemetry logs lost leases, and with -otel stdout prints the spans of the
// requests and, below them, of their locks: each as one line of JSON.
func newTelemetry(cfg config, log *slog.Logger, stdout io.Writer) (*telemetry, error) {
	if cfg.otel == "" {
		return &telemetry{
			observer: &watcher{log},
			tracer:   noop.NewTracerProvider().Tracer(""),
			shutdown: func(context.Context) error { return nil },
		}, nil
	}
	exporter, err := stdouttrace.New(stdouttrace.WithWriter(stdout))
	if err != nil {
		return nil, fmt.Errorf("spans: %w", err)
	}
	provider := sdktrace.NewTracerProvider(
		// In production spans are collected in the background (WithBatcher).
		// Here each is to be seen when it ends, and none dropped.
		sdktrace.WithSyncer(exporter),
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", "payments"))),
	)
	// Metrics go to the global provider, which discards them: nobody asked.
	observer, err := otellock.New(otellock.WithTracerProvider(provider), otellock.WithLogger(log))
	if err != nil {
		return nil, fmt.Errorf("spans: %w", err)
	}
	return &telemetry{observer, provider.Tracer("payments"), provider.Shutdown}, nil
}

// request starts the span of a request. It stands in for the instrumentation
// that exists for each framework (otelhttp, otelgin, otelecho, otelgrpc), and
// like that goes outside the lock's middleware, whose spans it is to contain.
func (t *telemetry) request(ctx context.Context, frontend, name string) (context.Context, func()) {
	name = strings.TrimSpace(name) // without a route the method alone
	ctx, span := t.tracer.Start(ctx, name,
		trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attribute.String("payments.frontend", frontend)))
	return ctx, func() { span.End() }
}

// watcher is told by the locker what becomes of the locks. While serving, only
// a lost one is worth a line.
type watcher struct{ log *slog.Logger }

// Start implements core.Observer.
func (w *watcher) Start(ctx context.Context, op core.Operation) (context.Context, core.Observation) {
	return ctx, core.Observation{
		Lost: func(l core.Loss) {
			w.log.Warn("lease lost", "rule", op.Rule, "reason", l.Reason, "held", l.Held, "token", l.Token, "error", l.Err)
		},
	}
}
