// Package pgxstore is for services that use PostgreSQL through pgx. It is a separate module,
// so that other users of Interlock do not get pgx.
//
// [New] makes the store of package pgstore on the service's pool, and [Tx] returns the
// transaction of a request:
//
//	store, err := pgxstore.New(pool)
//	tx, err := pgxstore.Tx(ctx) // in a handler
//
// A [Listener] receives notifications (LISTEN) on its own connection, and finds out
// whether it does: behind a pooler in transaction mode the statement succeeds and no
// notification arrives. [DB] gives the store its connections from the service's pool.
// [TxOn] shows a transaction of database/sql as a [pgx.Tx].
package pgxstore
