// Package postgres has no code: its tests run the stores with state in PostgreSQL,
// core/pgstore and pgxstore, on a real server: in files locks_ the locks, in records_ the
// records of idempotent requests, in tx_ the transactions of their handlers, in pgx_ the
// additions of pgxstore, and in kills_ a service with processes that are killed.
package postgres
