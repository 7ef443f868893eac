//go:build long

package observability

import (
	"log"
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
)

// The lines of docs/operations.md.
func _(mux *http.ServeMux) {
	reader, err := prometheus.New()
	if err != nil {
		log.Fatal(err)
	}
	otel.SetMeterProvider(metric.NewMeterProvider(metric.WithReader(reader)))
	mux.Handle("/metrics", promhttp.Handler())
}
