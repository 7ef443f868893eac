package conformance

import (
	"context"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/adaptertest"
	"github.com/interlock-go/interlock/internal/frameworks"
	otellock "github.com/interlock-go/interlock/otel"
)

// spans looks at what a trace shows of calls that are granted, refused for the
// lock and refused for the key.
func (w *world) spans() {
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	observer, err := otellock.New(otellock.WithTracerProvider(provider))
	if err != nil {
		w.Fatal(err)
	}
	locker := w.locker(core.WithObserver(observer))
	parents := make(chan trace.SpanContext, 10)
	serve := func(wait time.Duration) func(tenant string) (adaptertest.Outcome, trace.SpanContext, tracetest.SpanStubs, tracetest.SpanStubs) {
		s := &adaptertest.Service{
			Layers: frameworks.Locks(core.Serialize(locker, "tenant/{header.X-Tenant}", core.Wait(wait), core.Name("debit"))),
			Handler: func(ctx context.Context, call *adaptertest.Call) error {
				// What the handler does is not below the lock.
				span := trace.SpanContextFromContext(ctx)
				return call.Send(span.SpanID().String())
			},
			Derive: func(ctx context.Context) context.Context {
				ctx, span := provider.Tracer("test").Start(ctx, "server")
				parents <- span.SpanContext()
				return ctx
			},
		}
		client := w.Start(w, s)
		return func(tenant string) (o adaptertest.Outcome, parent trace.SpanContext, acquire, release tracetest.SpanStubs) {
			req := account("1")
			req.Header = [][2]string{{"X-Tenant", tenant}}
			exporter.Reset()
			o = client.Call(w.Context(), req)
			s.Visit(w) // after the release, and after its span
			parent = adaptertest.Receive(w, parents, "the server's span")
			for _, span := range exporter.GetSpans() {
				if span.Parent.SpanID() != parent.SpanID() || span.SpanContext.TraceID() != parent.TraceID() {
					w.Errorf("%s: not below the server's span", span.Name)
				}
				switch span.Name {
				case "lock acquire debit":
					acquire = append(acquire, span)
				case "lock release debit":
					release = append(release, span)
				default:
					w.Errorf("span %q", span.Name)
				}
			}
			return o, parent, acquire, release
		}
	}
	call, try := serve(time.Minute), serve(0)

	o, parent, acquire, release := call("acme")
	w.wantOK(o, parent.SpanID().String())
	if len(acquire) != 1 || len(release) != 1 {
		w.Fatalf("granted: %d acquire spans, %d release spans", len(acquire), len(release))
	}
	hash := core.Hashed("tenant/acme").Hash()
	token := value(acquire[0], "interlock.token")
	if token.AsInt64() == 0 || token != value(release[0], "interlock.token") {
		w.Errorf("tokens %v and %v", token, value(release[0], "interlock.token"))
	}
	w.wantSpan(acquire[0], codes.Unset,
		attribute.String("interlock.rule", "debit"),
		attribute.String("interlock.key_hash", hash),
		attribute.String("interlock.outcome", "granted"),
		attribute.Bool("interlock.contended", false),
		attribute.Bool("interlock.reentered", false),
		attribute.Int("interlock.attempts", 1))
	w.wantSpan(release[0], codes.Unset,
		attribute.String("interlock.rule", "debit"),
		attribute.String("interlock.key_hash", hash),
		attribute.String("interlock.outcome", "released"),
		attribute.Bool("interlock.handed_over", false))

	// By a locker of its own: an observer would see it as well.
	w.hold(w.locker(), "tenant/other")
	o, _, acquire, release = try("other")
	w.wantRefused(o, reason.Held, false)
	if len(acquire) != 1 || len(release) != 0 {
		w.Fatalf("held: %d acquire spans, %d release spans", len(acquire), len(release))
	}
	w.wantSpan(acquire[0], codes.Unset,
		attribute.String("interlock.rule", "debit"),
		attribute.String("interlock.key_hash", core.Hashed("tenant/other").Hash()),
		attribute.String("interlock.outcome", "held"),
		attribute.Bool("interlock.contended", true),
		attribute.String("error.type", "held"))

	o, _, acquire, release = call("")
	w.wantRefused(o, reason.BadKey, false)
	if len(acquire) != 1 || len(release) != 0 {
		w.Fatalf("bad key: %d acquire spans, %d release spans", len(acquire), len(release))
	}
	w.wantSpan(acquire[0], codes.Unset,
		attribute.String("interlock.rule", "debit"),
		attribute.String("interlock.outcome", "bad_key"),
		attribute.String("error.type", "bad_key"))

	if err := locker.Close(w.Context()); err != nil {
		w.Fatal(err)
	}
	o, _, acquire, _ = call("acme")
	w.wantRefused(o, reason.Closing, false)
	if len(acquire) != 1 {
		w.Fatalf("closing: %d acquire spans", len(acquire))
	}
	w.wantSpan(acquire[0], codes.Error, // an operator should look at that one
		attribute.String("interlock.outcome", "closing"),
		attribute.String("error.type", "closing"))
}

// wantSpan looks for attributes, and for none that shows the key itself.
func (w *world) wantSpan(span tracetest.SpanStub, status codes.Code, want ...attribute.KeyValue) {
	w.Helper()
	if span.Status.Code != status {
		w.Errorf("%s: status %v; want %v", span.Name, span.Status, status)
	}
	for _, kv := range want {
		if got := value(span, kv.Key); got != kv.Value {
			w.Errorf("%s: %s is %s; want %s", span.Name, kv.Key, got.String(), kv.Value.String())
		}
	}
	for _, kv := range span.Attributes {
		if strings.Contains(kv.Value.String(), "tenant/") {
			w.Errorf("%s: %s shows the key: %s", span.Name, kv.Key, kv.Value.String())
		}
	}
}

func value(span tracetest.SpanStub, key attribute.Key) attribute.Value {
	for _, kv := range span.Attributes {
		if kv.Key == key {
			return kv.Value
		}
	}
	return attribute.Value{}
}
