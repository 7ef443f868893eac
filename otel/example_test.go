package otellock_test

import (
	"context"
	"fmt"
	"log"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	otellock "github.com/interlock-go/interlock/otel"
)

// An application sets up its SDK and exporters once, as ever; the observer
// writes to them. Here spans and metrics stay in memory, to be printed.
func Example() {
	spans := tracetest.NewInMemoryExporter()
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	reader := sdkmetric.NewManualReader()
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))

	// Without options, the global providers (otel.SetTracerProvider).
	observer, err := otellock.New(otellock.WithTracerProvider(tracers), otellock.WithMeterProvider(meters))
	if err != nil {
		log.Fatal(err)
	}
	locker, err := core.New(memstore.New(), core.WithObserver(observer)) // in production: a redisstore
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(context.Background())
	observer.Watch(locker)

	// The tracing middleware of a framework does this for each request.
	ctx, request := tracers.Tracer("app").Start(context.Background(), "POST /accounts/{id}/debit")
	err = locker.Do(ctx, "account/42", func(context.Context) error { return nil }, core.Name("account/{id}"))
	if err != nil {
		log.Fatal(err)
	}
	request.End()

	for _, s := range spans.GetSpans() {
		fmt.Println(s.Name)
		for _, kv := range s.Attributes {
			if kv.Key == "interlock.key_hash" || kv.Key == "interlock.outcome" {
				fmt.Printf("  %s %s\n", kv.Key, kv.Value.AsString())
			}
		}
	}
	fmt.Println("account/42 is", core.Hashed("account/42").Hash())

	var measured metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &measured); err != nil {
		log.Fatal(err)
	}
	for _, m := range measured.ScopeMetrics[0].Metrics {
		fmt.Println(m.Name, m.Unit)
	}
	// Output:
	// lock acquire account/{id}
	//   interlock.outcome granted
	//   interlock.key_hash cd2bec937493f707
	// lock release account/{id}
	//   interlock.outcome released
	//   interlock.key_hash cd2bec937493f707
	// POST /accounts/{id}/debit
	// account/42 is cd2bec937493f707
	// interlock.acquire.duration s
	// interlock.hold.duration s
	// interlock.waiters {caller}
	// interlock.leases {lease}
	// interlock.attempts {attempt}
	// interlock.queue.longest {caller}
	// interlock.undelivered {call}
}
