// Package pgx tests the module pgxstore on a real PostgreSQL, and behind a real PgBouncer.
package pgx
