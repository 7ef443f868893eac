// Package examples tests the programs examples/across, examples/ledger and examples/payments
// on a real PostgreSQL: the first two in separate processes (some of them are killed), and
// the demonstration of the payments. The tests are here and not with the programs, since
// the server of the tests (package pgtest) is for this module only.
package examples
