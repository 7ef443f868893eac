package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/observe"
	otellock "github.com/interlock-go/interlock/otel"
)

// telemetry holds the observer of the locks.
type telemetry struct {
	observer observe.Observer
	watch    func(l *core.Locker) (stop func())
	shutdown func(context.Context) error
}

// newTelemetry logs lost leases, and with -otel stdout prints the spans of the locks, each as
// one line of JSON. They are below the spans of the requests where a service has the
// instrumentation of its framework (otelhttp, otelgin, otelecho, otelgrpc).
func newTelemetry(cfg config, log *slog.Logger, stdout io.Writer) (*telemetry, error) {
	if cfg.otel == "" {
		return &telemetry{
			observer: &watcher{log},
			watch:    func(*core.Locker) (stop func()) { return func() {} },
			shutdown: func(context.Context) error { return nil },
		}, nil
	}
	if cfg.otel != "stdout" {
		return nil, fmt.Errorf("-otel %s: accepted is stdout", cfg.otel)
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
	return &telemetry{observer, observer.Watch, provider.Shutdown}, nil
}

// watcher receives the events of the locks from the locker, and logs lost leases.
type watcher struct{ log *slog.Logger }

// Start implements observe.Observer.
func (w *watcher) Start(ctx context.Context, op observe.Operation) (context.Context, observe.Observation) {
	return ctx, observe.Observation{
		Lost: func(l core.Loss) {
			w.log.Warn("lease lost", "rule", op.Rule, "reason", l.Reason, "held", l.Held, "token", l.Token, "error", l.Err)
		},
	}
}
