// Package pgxstore is for services that use PostgreSQL through pgx. It is a module of
// its own, so that other users of Interlock do not get pgx.
//
// [New] makes the store of package pgstore on the service's pool, and [Tx] returns the
// transaction of a request:
//
//	store, err := pgxstore.New(pool)
//	tx, err := pgxstore.Tx(ctx) // in a handler
//
// A [Listener] hears notifications (LISTEN) on a connection of its own, and finds out
// whether it does: behind a pooler in transaction mode the statement succeeds and
// nothing is heard. [DB] gives the store its connections from the service's pool.
// [TxOn] shows a transaction of database/sql as a [pgx.Tx].
package pgxstore
