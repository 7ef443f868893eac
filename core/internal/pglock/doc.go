// Package pglock keeps locks in a table of PostgreSQL. It implements [driver.Store] on
// database/sql alone.
//
// A lock is a row: its owner, its last fencing token, the end of its lease by the
// server's clock, and the list of the lockers that wait (sql/acquire.sql says the rules).
// A release keeps the row with its token; rows of locks that no owner has held for a while
// are deleted in the background (sweep.go). Columns that change have no index, so that an
// update need not touch one.
//
// A request is one statement, without a transaction around it, a session state or a
// prepared statement of this package: a connection pooler in transaction mode may be in
// between. Requests of many goroutines share a statement (lane.go), which has them as
// arrays. An error of a statement decides whether it is sent again (request.go,
// errors.go).
//
// Waiting lockers of other processes notice a release by a look at the table from time to
// time (poll.go), or from a [Listener].
package pglock
