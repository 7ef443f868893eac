// Package postgres has no code: its tests hold what keeps its state in PostgreSQL against
// a real one.
package postgres
