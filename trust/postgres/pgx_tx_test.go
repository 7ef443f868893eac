//go:build integration && unix

package postgres_test

import (
	"database/sql"
	"errors"
	"io"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-go/interlock/pgxstore"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// begin makes a table, and a transaction in two forms.
func begin(t *testing.T) (*sql.DB, *sql.Conn, *sql.Tx, pgx.Tx) {
	t.Helper()
	db := pgxstore.DB(newPool(t, pgtest.DSN(t)))
	execute(t, db, "CREATE TABLE t (a int)")
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = conn.Close(), db.Close() })
	own, err := conn.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = own.Rollback() })
	tx, err := pgxstore.TxOn(conn)
	if err != nil {
		t.Fatal(err)
	}
	return db, conn, own, tx
}

// sum is the committed sum of a database.
const sum = "SELECT coalesce(sum(a), 0) FROM t"

func TestATransactionOfDatabaseSQLCanBeUsedThroughPgx(t *testing.T) {
	t.Parallel()
	db, _, own, tx := begin(t)
	ctx := t.Context()
	if _, err := own.ExecContext(ctx, "INSERT INTO t VALUES (1)"); err != nil {
		t.Error(err)
	}
	if tag, err := tx.Exec(ctx, "INSERT INTO t VALUES ($1)", 2); err != nil || tag.RowsAffected() != 1 {
		t.Error(tag, err)
	}
	if n, err := tx.CopyFrom(ctx, pgx.Identifier{"t"}, []string{"a"}, pgx.CopyFromRows([][]any{{4}, {8}})); err != nil || n != 2 {
		t.Error(n, err)
	}
	batch := &pgx.Batch{}
	batch.Queue("INSERT INTO t VALUES ($1)", 16)
	batch.Queue("INSERT INTO t VALUES ($1)", 32)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		t.Error(err)
	}
	if _, err := tx.Prepare(ctx, "insert", "INSERT INTO t VALUES ($1)"); err != nil {
		t.Error(err)
	}
	if _, err := tx.Exec(ctx, "insert", 64); err != nil {
		t.Error(err)
	}
	found, _ := tx.Query(ctx, "SELECT a FROM t ORDER BY a")
	if all, err := pgx.CollectRows(found, pgx.RowTo[int]); err != nil || len(all) != 7 {
		t.Error(all, err)
	}
	var all int
	if err := tx.QueryRow(ctx, sum).Scan(&all); err != nil || all != 127 {
		t.Error(all, err)
	}
	if conn := tx.Conn(); conn == nil || conn.PgConn().TxStatus() != 'T' {
		t.Error("the connection is not in the transaction")
	}
	if n := read[int](t, db, sum); n != 0 {
		t.Errorf("%d is committed too early", n)
	}
	if err := own.Commit(); err != nil {
		t.Error(err)
	}
	if n := read[int](t, db, sum); n != 127 {
		t.Errorf("%d is committed; want 127", n)
	}
}

func TestAHandlerCannotEndTheTransaction(t *testing.T) {
	t.Parallel()
	db, _, own, tx := begin(t)
	if _, err := tx.Exec(t.Context(), "INSERT INTO t VALUES (1)"); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{"Commit": tx.Commit(t.Context()), "Rollback": tx.Rollback(t.Context())} {
		if !errors.Is(err, pgxstore.ErrNotYours) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n := read[int](t, db, sum); n != 0 {
		t.Errorf("%d is committed", n)
	}
	if err := own.Commit(); err != nil {
		t.Error(err)
	}
	if n := read[int](t, db, sum); n != 1 {
		t.Errorf("%d is committed; want 1", n)
	}
}

func TestSavepointsOfATransaction(t *testing.T) {
	t.Parallel()
	db, _, own, tx := begin(t)
	ctx := t.Context()
	errNo := errors.New("no")
	add := func(n int, then error) func(pgx.Tx) error {
		return func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO t VALUES ($1)", n)
			return errors.Join(err, then)
		}
	}
	if err := pgx.BeginFunc(ctx, tx, add(1, nil)); err != nil {
		t.Error(err)
	}
	if err := pgx.BeginFunc(ctx, tx, add(2, errNo)); !errors.Is(err, errNo) {
		t.Error(err)
	}
	err := pgx.BeginFunc(ctx, tx, func(outer pgx.Tx) error {
		if err := pgx.BeginFunc(ctx, outer, add(4, errNo)); !errors.Is(err, errNo) {
			t.Error(err)
		}
		return pgx.BeginFunc(ctx, outer, add(8, nil))
	})
	if err != nil {
		t.Error(err)
	}
	// A statement that fails spoils the part after the savepoint, and not the rest.
	failed, err := tx.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := failed.Exec(ctx, "INSERT INTO nowhere VALUES (1)"); err == nil {
		t.Error("there is a table nowhere")
	}
	if err := failed.Rollback(ctx); err != nil {
		t.Error(err)
	}
	if _, err := failed.Exec(ctx, "INSERT INTO t VALUES (16)"); !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("after the end of a savepoint: %v", err)
	}
	if err := failed.Commit(ctx); !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("the end of a savepoint that has ended: %v", err)
	}
	if err := own.Commit(); err != nil {
		t.Error(err)
	}
	if n := read[int](t, db, sum); n != 9 {
		t.Errorf("%d is committed; want 9", n)
	}
}

func TestLargeObjectsOfATransaction(t *testing.T) {
	t.Parallel()
	_, _, own, tx := begin(t)
	ctx := t.Context()
	objects := tx.LargeObjects()
	id, err := objects.Create(ctx, 0)
	if err != nil {
		t.Fatal(err)
	}
	object, err := objects.Open(ctx, id, pgx.LargeObjectModeRead|pgx.LargeObjectModeWrite)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := object.Write([]byte("large")); err != nil {
		t.Error(err)
	}
	if _, err := object.Seek(0, io.SeekStart); err != nil {
		t.Error(err)
	}
	if text, err := io.ReadAll(object); err != nil || string(text) != "large" {
		t.Errorf("%q, %v", text, err)
	}
	if err := own.Rollback(); err != nil {
		t.Error(err)
	}
	over := tx.LargeObjects()
	if _, err := over.Create(ctx, 0); !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("after the end: %v", err)
	}
}

// After the end of a transaction its connection is another's.
func TestATransactionThatHasEndedIsClosed(t *testing.T) {
	for what, end := range map[string]func(*sql.Conn, *sql.Tx) error{
		"committed":                      func(_ *sql.Conn, own *sql.Tx) error { return own.Commit() },
		"rolled back":                    func(_ *sql.Conn, own *sql.Tx) error { return own.Rollback() },
		"committed, and the pool has it": func(conn *sql.Conn, own *sql.Tx) error { return errors.Join(own.Commit(), conn.Close()) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			db, conn, own, tx := begin(t)
			ctx := t.Context()
			inner, err := tx.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := end(conn, own); err != nil {
				t.Fatal(err)
			}
			for name, use := range map[string]func(pgx.Tx) error{
				"Exec": func(tx pgx.Tx) error {
					_, err := tx.Exec(ctx, "INSERT INTO t VALUES (1)")
					return err
				},
				"Query": func(tx pgx.Tx) error {
					found, err := tx.Query(ctx, "INSERT INTO t VALUES (1) RETURNING a")
					if later := found.Err(); !errors.Is(later, pgx.ErrTxClosed) {
						t.Errorf("the rows: %v", later)
					}
					return err
				},
				"QueryRow": func(tx pgx.Tx) error {
					var a int
					return tx.QueryRow(ctx, "INSERT INTO t VALUES (1) RETURNING a").Scan(&a)
				},
				"CopyFrom": func(tx pgx.Tx) error {
					_, err := tx.CopyFrom(ctx, pgx.Identifier{"t"}, []string{"a"}, pgx.CopyFromRows([][]any{{1}}))
					return err
				},
				"SendBatch": func(tx pgx.Tx) error {
					batch := &pgx.Batch{}
					batch.Queue("INSERT INTO t VALUES (1)")
					return tx.SendBatch(ctx, batch).Close()
				},
				"Prepare": func(tx pgx.Tx) error {
					_, err := tx.Prepare(ctx, "x", "SELECT 1")
					return err
				},
				"Begin": func(tx pgx.Tx) error {
					_, err := tx.Begin(ctx)
					return err
				},
			} {
				for _, tx := range []pgx.Tx{tx, inner} {
					if err := use(tx); !errors.Is(err, pgx.ErrTxClosed) {
						t.Errorf("%s: %v; want %v", name, err, pgx.ErrTxClosed)
					}
					if tx.Conn() != nil {
						t.Error("there is a connection")
					}
				}
			}
			if n := read[int](t, db, sum); n != 0 {
				t.Errorf("%d was written outside of the transaction", n)
			}
		})
	}
}

func TestABatchWithATransactionOfItsOwnIsRefused(t *testing.T) {
	t.Parallel()
	db, _, own, tx := begin(t)
	batch := &pgx.Batch{}
	batch.BeginTx(pgx.TxOptions{})
	batch.Queue("INSERT INTO t VALUES (1)")
	if err := tx.SendBatch(t.Context(), batch).Close(); err == nil {
		t.Error("a batch may begin a transaction in one")
	}
	if err := own.Commit(); err != nil {
		t.Error(err)
	}
	if n := read[int](t, db, sum); n != 0 {
		t.Errorf("%d was written", n)
	}
}

func TestOnlyAnOpenTransactionHasAView(t *testing.T) {
	t.Parallel()
	pool := newPool(t, pgtest.DSN(t))
	db := pgxstore.DB(pool)
	defer db.Close()
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if tx, err := pgxstore.TxOn(conn); !errors.Is(err, pgx.ErrTxClosed) || tx != nil {
		t.Errorf("without a transaction: %v", err)
	}
}
