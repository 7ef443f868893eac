// Package observability checks the dashboard and the alerts of docs/observability: with
// the parser of Prometheus, against the names and labels that package otellock emits
// through the Prometheus exporter, and with promtool.
package observability
