// Package fencing makes resources refuse what an outdated holder of a lock writes.
// A lease can end while its holder does not know: the process was stopped, or a
// failover lost the lock. The fencing token ([core.Lease.Token]) tells: the token
// of each grant is greater than all earlier tokens of the key, and a resource that
// remembers the greatest token it has seen refuses smaller ones (Martin Kleppmann,
// "How to do distributed locking", 2016).
//
// A token must be claimed before anything is read. A check at the write alone is
// too late. A holder that was paused writes after its successor has read; the
// resource has not seen a larger token yet. The successor then overwrites a change
// that it never saw. A claim that comes first refuses the outdated of the two.
//
// # SQL
//
// [Table] is a fence for each lock key, in the database that it protects.
// [Table.InTx] claims what a lease holds, runs a transaction, and commits it if the
// lease is still held:
//
//	fences := fencing.Table{} // made by a migration: fences.Schema()
//	err := fences.InTx(ctx, db, lease, nil, func(ctx context.Context, tx *sql.Tx) error {
//		return debit(ctx, tx, account, amount) // reads, then writes
//	})
//
// [Column] is the same for a fence that is a column of the rows themselves.
//
// The statements run on PostgreSQL 9.5 and SQLite 3.24 or later, and on all databases
// with the same dialect. In PostgreSQL any isolation level is right. From
// REPEATABLE READ on, a transaction that met another one fails with SQLSTATE 40001.
// That says nothing about the token: try the transaction again under the same
// lease.
//
// # Services
//
// A service that owns the database, and takes no locks, gets the tokens with the requests of
// its callers, and refuses the outdated by a rule ([core.Fenced], [Table.Fence]).
//
// # Other resources
//
// Package redisfence is the same for values in Redis. For a service that looks at
// no token there is [IdempotencyKey].
package fencing
