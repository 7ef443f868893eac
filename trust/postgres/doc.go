// Package postgres has no code: its tests hold what keeps its state in PostgreSQL, the
// stores core/pgstore and pgxstore, against a real server: in files locks_ the locks, in
// records_ the records of idempotent requests, in tx_ the transactions of their handlers,
// in pgx_ what pgxstore adds, and in kills_ a service whose processes are killed.
package postgres
