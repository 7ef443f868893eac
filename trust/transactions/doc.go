// Package transactions holds tests of package core/pgstore against a real PostgreSQL.
package transactions
