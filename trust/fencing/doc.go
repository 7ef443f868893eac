// Package fencing has no code: its tests hold the statements of core/fencing
// against a real PostgreSQL and SQLite.
package fencing
