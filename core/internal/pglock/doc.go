// Package pglock keeps locks in a table of PostgreSQL. It implements [driver.Store] on
// database/sql alone.
//
// A lock is a row: the record of package keystate, as JSON, the last fencing token, the end of its lease by the
// server's clock, and the lockers that were called last. All requests are carried out by the rules of keystate
// (change.go says how). A release keeps the row with its token; rows of locks that no owner has held for a while
// are deleted in the background (sweep.go). Columns that change have no index, so that an
// update need not touch one.
//
// A request is one statement, or two, without a transaction around it, a session state or a
// prepared statement of this package: a connection pooler in transaction mode may be in
// between. Requests of many goroutines share a statement (lane.go), which has them as
// arrays. An error of a statement decides whether it is sent again (request.go,
// errors.go).
//
// A release calls the next lockers by name, and offers the lock to the first. Lockers of other processes hear
// that from a [Listener] (listen.go, offers.go), or see it by a look at the table from time to time (poll.go).
package pglock
