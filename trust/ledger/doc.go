// Package ledger tests the program examples/ledger on a real PostgreSQL: as processes of
// its own, one of which is killed. The tests are here and not beside the program, since
// the server of the tests (package pgtest) is for this module only.
package ledger
