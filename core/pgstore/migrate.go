package pgstore

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrations returns the statements that make and change the tables, for migration
// tools: one file for each version, with the version's number first in its name. The
// tables have their default names. [Store.Migrate] runs the same files, with the names of
// the store.
func Migrations() fs.FS {
	sub, err := fs.Sub(migrations, "migrations")
	if err != nil {
		panic(err) // it is built in
	}
	return sub
}

// Migrate makes the tables, and brings those of an earlier version up to date. It keeps
// the version in a table (interlock_version). Several processes may call it at the same
// time: one does the work, the others wait for it. Its error is that of the database; then
// nothing was changed.
func (s *Store) Migrate(ctx context.Context) error {
	tx, err := s.records.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("interlock: migrate: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	version := s.named("interlock_version")
	for _, text := range []string{
		// Two processes that create a table at the same time may both find none.
		"SELECT pg_advisory_xact_lock(hashtext('" + version + "'))",
		"CREATE TABLE IF NOT EXISTS " + version + " (version integer NOT NULL PRIMARY KEY, made timestamptz NOT NULL DEFAULT now())",
	} {
		if _, err := tx.ExecContext(ctx, text); err != nil {
			return fmt.Errorf("interlock: migrate: %w", err)
		}
	}
	var has int
	if err := tx.QueryRowContext(ctx, "SELECT coalesce(max(version), 0) FROM "+version).Scan(&has); err != nil {
		return fmt.Errorf("interlock: migrate: %w", err)
	}
	files, err := fs.Glob(migrations, "migrations/*.sql") // sorted
	if err != nil {
		return fmt.Errorf("interlock: migrate: %w", err)
	}
	for _, file := range files {
		digits, _, _ := strings.Cut(strings.TrimPrefix(file, "migrations/"), "_")
		number, err := strconv.Atoi(digits)
		if err != nil {
			return fmt.Errorf("interlock: migrate: %w", err)
		}
		if number <= has {
			continue
		}
		text, err := migrations.ReadFile(file)
		if err != nil {
			return fmt.Errorf("interlock: migrate: %w", err)
		}
		if _, err := tx.ExecContext(ctx, s.named(string(text))); err != nil {
			return fmt.Errorf("interlock: migrate to version %d: %w", number, err)
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO "+version+" (version) VALUES ($1::integer)", number); err != nil {
			return fmt.Errorf("interlock: migrate to version %d: %w", number, err)
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("interlock: migrate: %w", err)
	}
	return nil
}
