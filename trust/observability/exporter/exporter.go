// Package exporter shows the metrics of a program to Prometheus. The tests of package
// observability compile it into examples/payments, whose module has no Prometheus
// exporter: it is a dependency that no user of Interlock should get.
package exporter

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
)

// Serve makes a Prometheus exporter the reader of the global provider of metrics, and
// serves it on a free port of the loopback interface for as long as the process lives.
// It writes "listening metrics <host:port>" to w. Call it once, before the program makes
// what measures. otellock.New uses the global provider unless it is told otherwise.
func Serve(w io.Writer) error {
	reader, err := prometheus.New()
	if err != nil {
		return err
	}
	otel.SetMeterProvider(metric.NewMeterProvider(metric.WithReader(reader)))
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.Handler())
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is open for as long as the process
	if err != nil {
		return err
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			panic(err) // the test reads it on stderr
		}
	}()
	_, err = fmt.Fprintf(w, "listening metrics %s\n", listener.Addr())
	return err
}
