package otellock_test

import (
	"testing"
	"testing/synctest"

	"go.opentelemetry.io/otel/trace"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/observe"
)

// A message is not consumed in the trace of its producer. The lock that the consumer
// waits for leads there.
func TestTheLockSpansOfAConsumerLinkToItsProducer(t *testing.T) {
	for name, c := range map[string]struct {
		producer observe.Producer
		want     string // the span of the link
	}{
		"a producer":          {observe.Producer{Parent: "00-01000000000000000000000000000000-0200000000000000-01", State: "a=b"}, "0200000000000000"},
		"no producer":         {observe.Producer{}, ""},
		"a malformed parent":  {observe.Producer{Parent: "00-01-02-01"}, ""},
		"a state by itself":   {observe.Producer{State: "a=b"}, ""},
		"a parent of nothing": {observe.Producer{Parent: "00-00000000000000000000000000000000-0000000000000000-00"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newProbe(t)
				l, err := core.New(memstore.New(), core.WithObserver(p.observer))
				if err != nil {
					t.Fatal(err)
				}
				ctx, consumer := p.tracer.Start(observe.WithProducer(t.Context(), c.producer), "consume")
				lease, err := l.Lock(ctx, "account/42", core.Name("consumer"))
				if err != nil {
					t.Fatal(err)
				}
				_ = lease.Release(t.Context())
				consumer.End()
				_ = l.Close(t.Context())
				found := 0
				for _, s := range p.spans.Ended() {
					if s.Name() == "consume" {
						continue
					}
					found++
					var link trace.SpanContext
					if links := s.Links(); len(links) > 0 {
						link = links[0].SpanContext
					}
					if got := link.SpanID(); link.IsValid() != (c.want != "") || link.IsValid() && got.String() != c.want {
						t.Errorf("%s links to the span %s; want %q", s.Name(), got, c.want)
					}
					if s.Parent().SpanID() != consumer.SpanContext().SpanID() {
						t.Errorf("%s is a child of %s; want the consumer's span", s.Name(), s.Parent().SpanID())
					}
				}
				if found != 2 {
					t.Errorf("%d lock spans in %v; want that of the wait and that of the release", found, p.names())
				}
			})
		})
	}
}
