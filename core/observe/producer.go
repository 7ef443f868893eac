package observe

import "context"

// Producer is the trace context (W3C, traceparent and tracestate) of the process that sent a
// message.
type Producer struct{ Parent, State string }

type producerKey struct{}

// WithProducer returns a context for the consumer of a message. The spans of the locks that it
// waits for link to the producer's span (package otellock). Consumers of this module call it.
func WithProducer(ctx context.Context, p Producer) context.Context {
	if p.Parent == "" {
		return ctx
	}
	return context.WithValue(ctx, producerKey{}, p)
}

// ProducerOf returns the producer of the message that ctx belongs to; the zero value if there
// is none.
func ProducerOf(ctx context.Context) Producer {
	p, _ := ctx.Value(producerKey{}).(Producer)
	return p
}
