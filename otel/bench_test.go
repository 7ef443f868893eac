package otellock_test

import (
	"context"
	"testing"

	metricnoop "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/observe"
	otellock "github.com/interlock-go/interlock/otel"
)

// providers are what an application may have set up, from nothing to all.
func providers() []struct {
	name string
	opts []otellock.Option
} {
	meters := func() otellock.Option {
		return otellock.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())))
	}
	tracers := func(s sdktrace.Sampler) otellock.Option {
		return otellock.WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSampler(s)))
	}
	noTracers := otellock.WithTracerProvider(tracenoop.NewTracerProvider())
	noMeters := otellock.WithMeterProvider(metricnoop.NewMeterProvider())
	return []struct {
		name string
		opts []otellock.Option
	}{
		{"no-op", []otellock.Option{noTracers, noMeters}},
		{"metrics", []otellock.Option{noTracers, meters()}},
		{"unsampled", []otellock.Option{tracers(sdktrace.NeverSample()), noMeters}},
		{"sampled", []otellock.Option{tracers(sdktrace.AlwaysSample()), noMeters}},
		{"unsampled and metrics", []otellock.Option{tracers(sdktrace.NeverSample()), meters()}},
		{"sampled and metrics", []otellock.Option{tracers(sdktrace.AlwaysSample()), meters()}},
	}
}

// BenchmarkObserver is what the observer itself costs a call: one acquisition
// and one release, without the lock.
func BenchmarkObserver(b *testing.B) {
	for _, p := range providers() {
		b.Run(p.name, func(b *testing.B) {
			o, err := otellock.New(p.opts...)
			if err != nil {
				b.Fatal(err)
			}
			op := observe.Operation{Rule: "account/{id}", Keys: []string{"account/4711"}}
			ctx := context.Background()
			b.ReportAllocs()
			for b.Loop() {
				_, observation := o.Start(ctx, op)
				observation.Acquired(observe.Acquired{Attempts: 1, Token: 1})
				observation.Released(observe.Released{})
			}
		})
	}
}

// BenchmarkLock is a whole lock and release on a store in memory.
func BenchmarkLock(b *testing.B) {
	run := func(b *testing.B, opts ...core.LockerOption) {
		l, err := core.New(memstore.New(), opts...)
		if err != nil {
			b.Fatal(err)
		}
		defer l.Close(context.Background())
		ctx := context.Background()
		b.ReportAllocs()
		for b.Loop() {
			lease, err := l.Lock(ctx, "account/4711", core.Name("account/{id}"))
			if err != nil {
				b.Fatal(err)
			}
			if err := lease.Release(ctx); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("no observer", func(b *testing.B) { run(b) })
	for _, p := range providers() {
		o, err := otellock.New(p.opts...)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(p.name, func(b *testing.B) { run(b, core.WithObserver(o)) })
	}
}

func BenchmarkKeyHash(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		_ = core.Hashed("account/4711").Hash()
	}
}
