// Package examples tests the programs examples/ledger and examples/payments on a real
// PostgreSQL: the ledger as processes of its own, some of which are killed, and of the
// payments the demonstration. The tests are here and not beside the programs,
// since the server of the tests (package pgtest) is for this module only.
package examples
