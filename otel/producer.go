package otellock

import (
	"context"
	"slices"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/interlock-go/interlock/core/observe"
)

// linked returns the options of a span. In the consumer of a message the span links to the
// producer's span: the work of the consumer belongs to another trace, unless the application
// continues the producer's.
func (r *rule) linked(ctx context.Context) []trace.SpanStartOption {
	p := observe.ProducerOf(ctx)
	if p == (observe.Producer{}) {
		return r.start
	}
	carrier := propagation.MapCarrier{"traceparent": p.Parent, "tracestate": p.State}
	producer := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier)) //nolint:contextcheck // the span of ctx is the consumer's
	if !producer.IsValid() {                                                                                    // malformed
		return r.start
	}
	return append(slices.Clip(r.start), trace.WithLinks(trace.Link{SpanContext: producer}))
}
