// Package payments tests examples/payments on PostgreSQL: its bank, its demonstration, and
// payments whose process is killed.
package payments
