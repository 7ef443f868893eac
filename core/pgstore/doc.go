// Package pgstore keeps idempotency records in PostgreSQL, in the database that the service writes
// its effects to. The rows that a handler writes and the answer that its duplicates get are then
// committed in one transaction: a process that is killed at any point leaves both, or neither. No
// outcome stays unknown.
//
//	store, err := pgstore.New(db) // a *sql.DB, of any driver for PostgreSQL
//	err = store.Migrate(ctx)      // or the files of Migrations, by a migration tool
//	engine, err := idempotency.New(store, idempotency.Transactional(),
//		idempotency.Scope(core.FromContext("user")))
//	mux.Handle("POST /payments", httplock.Idempotent(engine)(handler))
//
// In the handler:
//
//	tx, err := pgstore.Tx(ctx) // the transaction of this request
//	if err != nil {
//		return err
//	}
//	_, err = tx.ExecContext(ctx, "UPDATE account SET balance = balance - $1 WHERE id = $2", amount, id)
//
// The engine commits the transaction with the answer, before any part of the answer
// leaves. It rolls back if the handler fails (a status of 500 or more, or a status that means
// "not now"), panics, or loses its claim or its lock. An answer that is stored, such as
// 403 or 422, commits: a handler that wants such an answer without its rows uses a
// savepoint. The handler neither commits nor rolls back, also not by a statement: the
// outcome of its request is then unknown ([reason.OutcomeUnknown]), and logged.
//
// # The two transactions
//
// The claim is a separate transaction, since duplicates have to see it. The rows of the handler,
// the fences of its locks and the answer are the second one. The lock of [idempotency.Under] is
// released after it. If the connection breaks while the commit is under way, the store reads the
// row on another connection, which tells whether the transaction was committed. If that cannot be
// found out within ten seconds, the client gets the answer that the request is in flight, and the
// next one finds either the answer or a free key.
//
// A transaction that the database rolls back (a serialization failure, a deadlock, a
// deferred constraint) is refused with [reason.RolledBack], a 503 that invites
// the client to try again. The handler is not run a second time by itself: it may have
// read its body, and called other services.
//
// # Locks
//
// A transaction that is begun under locks ([idempotency.Under], a guard around the
// endpoint) claims their fencing tokens first ([core.Fences], [fencing.Table]). A holder
// that lost its lock and does not know it then cannot commit after its successor has
// begun.
//
// # Isolation
//
// The transaction has the default isolation level of the database, or the level that
// [Isolation] sets. At READ COMMITTED nothing else is to be said. From REPEATABLE READ on a
// transaction fails if the record changed after its first statement: when the claim was
// renewed (after a third of the lease) or a duplicate began to wait. It is then rolled
// back and refused, as after any serialization failure. [idempotency.MarkEffect] changes
// the record, too: call it before the first statement of the transaction, and under locks
// before [Tx], which claims their fences. Later, the outcome of every such request is
// unknown, since the effect is marked and the transaction cannot be committed.
// [idempotency.HandOver] comes after [Tx]: the commit hands the request over.
//
// # Settings of the transaction
//
// The statement that stores the answer is the last in the transaction, and is executed
// with the settings that the handler has left. If a handler changes search_path, set it back,
// or name the schema of the tables by [Schema]. If a handler changes the role, set it back
// (RESET ROLE), or give the other role SELECT and UPDATE on the records. Otherwise the
// transaction is rolled back and the request is refused, each time.
//
// # Connections
//
// A request uses one connection at a time: for the claim, and then for its transaction.
// Renewals and duplicates need another one. So give db more connections than handlers that can run
// at the same time, or the store a separate pool ([Records]).
//
// The store has no state in a session and takes no advisory locks, so it works with a pooler in
// transaction mode. There a driver must not use named prepared statements (pgx:
// default_query_exec_mode=exec).
//
// Locks keep up to six connections while they are busy, and none of a pool that is bounded
// to fewer than twelve. A [sql.DB] on another pool does not know that pool's bound: use
// module pgxstore for a pool of pgx, or [sql.DB.SetMaxOpenConns].
//
// The store ends a connection that only reads, as to a server that was the primary before a
// failover; the pool then makes a new one.
//
// # Waiting duplicates
//
// [idempotency.WaitReplay] wakes duplicates in the process of the first request at once.
// In other processes they look once a second, or are woken by [Listen].
//
// [reason.OutcomeUnknown]: https://pkg.go.dev/github.com/interlock-go/interlock/core/reason#OutcomeUnknown
// [reason.RolledBack]: https://pkg.go.dev/github.com/interlock-go/interlock/core/reason#RolledBack
// [idempotency.Under]: https://pkg.go.dev/github.com/interlock-go/interlock/core/idempotency#Under
// [idempotency.MarkEffect]: https://pkg.go.dev/github.com/interlock-go/interlock/core/idempotency#MarkEffect
// [idempotency.HandOver]: https://pkg.go.dev/github.com/interlock-go/interlock/core/idempotency#HandOver
// [idempotency.WaitReplay]: https://pkg.go.dev/github.com/interlock-go/interlock/core/idempotency#WaitReplay
package pgstore
