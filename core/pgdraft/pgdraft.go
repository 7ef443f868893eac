// Package pgdraft stands in for the public package of the locks on PostgreSQL until that
// has them. Only tests import it.
package pgdraft

import (
	"database/sql"

	"github.com/interlock-go/interlock/core/internal/pglock"
)

// The parts of package pglock that its tests in the module trust need.
type (
	// Store is [pglock.Store].
	Store = pglock.Store
	// Config is [pglock.Config].
	Config = pglock.Config
	// Listener is [pglock.Listener].
	Listener = pglock.Listener
)

// New is [pglock.New].
func New(db *sql.DB, cfg Config) *Store { return pglock.New(db, cfg) }

// Schema is [pglock.Schema].
func Schema(table string) []string { return pglock.Schema(table) }
