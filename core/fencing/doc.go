// Package fencing makes resources refuse what an outdated holder of a lock
// writes. A lease can end while its holder does not know: the process was
// stopped, or a failover forgot the lock. Its fencing token tells: each grant's
// is greater than all before it, and a resource that remembers the greatest
// token it has seen refuses smaller ones (Martin Kleppmann, "How to do
// distributed locking", 2016).
//
// A token has to be claimed before anything is read. Checking it at the write
// alone is too late: a holder that was paused writes after its successor has
// read, the successor knows of no larger token yet, and then overwrites what it
// never saw. A claim that comes first refuses whichever of the two is outdated.
//
// # SQL
//
// Table is a fence for each lock key, in the database that is to be protected.
// Its InTx claims what a lease holds, runs a transaction, and commits it if the
// lease is still held:
//
//	fences := fencing.Table{} // made by a migration: fences.Schema()
//	err := fences.InTx(ctx, db, lease, nil, func(ctx context.Context, tx *sql.Tx) error {
//		return debit(ctx, tx, account, amount) // reads, then writes
//	})
//
// Column is the same for a fence that is a column of the rows themselves.
//
// The statements are those of PostgreSQL 9.5 and SQLite 3.24, and all databases
// that speak like them. In PostgreSQL any isolation level is right: from
// REPEATABLE READ on, a transaction that met another one fails with SQLSTATE
// 40001, which says nothing about the token, and is tried again under the same
// lease.
//
// # Others
//
// The package redisfence is the same for values in Redis. For a service that
// looks at no token there is IdempotencyKey.
package fencing
