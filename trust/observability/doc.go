// Package observability checks the dashboard and the alerts of docs/observability: with
// the parser of Prometheus, against the names and labels that package otellock emits
// through the Prometheus exporter; with promtool; and with a real Prometheus that
// scrapes examples/payments.
package observability
