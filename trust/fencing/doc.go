// Package fencing has no code: its tests hold core/fencing and its redisfence
// against a real PostgreSQL, SQLite and Redis, where the lock is broken on
// purpose.
package fencing
