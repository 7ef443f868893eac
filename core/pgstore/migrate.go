package pgstore

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
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

// Migrate makes the tables: it runs the files of [Migrations] that the schema lacks. Each file
// notes its version in the table interlock_version. If there
// is nothing to do, Migrate only reads that table, so a service without the right to
// create tables can call it. Several processes may call it at the same time: one does the
// work, the others wait for it. Its error comes from the database; then nothing was
// changed.
func (s *Store) Migrate(ctx context.Context) error {
	if err := s.migrate(ctx); err != nil {
		return fmt.Errorf("interlock: migrate: %w", err)
	}
	return nil
}

func (s *Store) migrate(ctx context.Context) error {
	files, err := fs.Glob(migrations, "migrations/*.sql") // sorted
	if err != nil {
		return err
	}
	return s.on(ctx, s.records, func(conn *sql.Conn) error { return s.migrateOn(ctx, conn, files) })
}

// migrateOn runs the files that are not noted yet.
func (s *Store) migrateOn(ctx context.Context, conn *sql.Conn, files []string) error {
	if has, err := s.version(ctx, conn); err != nil || has >= len(files) {
		return err
	}
	// The changes of another process must be visible once it has released the lock. Above
	// READ COMMITTED a transaction sees what there was when it began.
	tx, err := conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	// Two processes that create a table at the same time may both find none. All stores of
	// a database have the same lock, since one schema can be named in several ways.
	if _, err := tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock(hashtext('interlock migrate'))"); err != nil {
		return err
	}
	has, err := s.version(ctx, tx)
	if err != nil {
		return err
	}
	for i, file := range files {
		if i < has { // the files are numbered from 1, without a gap
			continue
		}
		text, err := migrations.ReadFile(file)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, s.named(string(text))); err != nil {
			return fmt.Errorf("%s: %w", strings.TrimPrefix(file, "migrations/"), err)
		}
	}
	return tx.Commit()
}

// version returns the version of the tables, 0 if there are none.
func (s *Store) version(ctx context.Context, q querier) (has int, err error) {
	name := s.named("interlock_version")
	// A session remembers that to_regclass found no table. By the look at pg_class it learns
	// what other sessions have committed since.
	var there bool
	err = q.QueryRowContext(ctx, "SELECT EXISTS (SELECT FROM pg_class WHERE oid = to_regclass('"+name+"'))").Scan(&there)
	if err != nil || !there {
		return 0, err
	}
	err = q.QueryRowContext(ctx, "SELECT coalesce(max(version), 0) FROM "+name).Scan(&has)
	return has, err
}
