package fencing

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/interlock-go/interlock/core"
)

// Table is a table of fences: it has, for each lock key, the greatest token that
// has claimed the key. It must be in the database that it protects, because a claim
// and the work under it have to be one transaction. The zero value is the table
// interlock_fence. The methods are safe for concurrent use.
//
// Its column key is a text, in the form of PostgreSQL's encode(key, 'escape'): ASCII is
// as it is, a backslash is there twice, and any other byte, and the zero byte, is a
// backslash and three octal digits.
type Table struct {
	// Name is the name of the table, interlock_fence if empty. It becomes part of
	// the statements as it is. It may therefore be qualified and quoted, and must
	// not come from a request.
	Name string
}

func (t Table) name() string {
	if t.Name == "" {
		return "interlock_fence"
	}
	return t.Name
}

// Schema returns the statement that creates the table unless it exists. Run it in a
// migration, in one process.
func (t Table) Schema() string {
	return "CREATE TABLE IF NOT EXISTS " + t.name() + " (key text NOT NULL PRIMARY KEY, token bigint NOT NULL)"
}

// Claim claims a lock key for a token. Call it before all other statements of the
// transaction. It locks the fence until the transaction ends, so that other
// transactions that claim the same key wait. Claim several keys in sorted order, or
// two transactions wait for each other.
//
// It returns an error that matches [ErrStale] if a larger token has claimed the
// key, and [core.ErrConfig] for a token below 1. The same token may claim the key
// again. Any other error comes from the database. In a handler under a rule of [core.Fenced] the
// claim waits for at most 2 s, as in [Table.Fence], and then returns [core.ErrUnavailable].
func (t Table) Claim(ctx context.Context, tx *sql.Tx, key string, token int64) error {
	// One statement for the first claim and the others: of two that find no row,
	// the second waits for the first and then compares.
	return claim(ctx, tx, key, token, statement{
		"INSERT INTO " + t.name() + " AS fence (key, token) VALUES ($1, $2)" +
			" ON CONFLICT (key) DO UPDATE SET token = excluded.token WHERE fence.token <= excluded.token",
		[]any{textOf(key), token},
	}, statement{
		"SELECT token FROM " + t.name() + " WHERE key = $1", []any{textOf(key)},
	})
}

// textOf returns a key as the table has it. A lock's key may be any bytes, and a text may
// not: it has no zero byte, and only characters of the database's encoding. All keys
// differ as texts, too.
func textOf(key string) string {
	var b strings.Builder
	for i := range len(key) {
		switch c := key[i]; {
		case c == '\\':
			b.WriteString(`\\`)
		case c == 0 || c > unicode.MaxASCII:
			fmt.Fprintf(&b, `\%03o`, c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// InTx claims every key of the lease and of [core.Fences], then runs fn, and otherwise works
// as the function [InTx].
func (t Table) InTx(
	ctx context.Context, db *sql.DB, lease *core.Lease, opts *sql.TxOptions, fn func(context.Context, *sql.Tx) error,
) error {
	if lease == nil {
		lease = core.LeaseFromContext(ctx)
	}
	fences := core.Fences(ctx)
	for _, key := range lease.Keys() {
		token, _ := lease.TokenFor(key)
		fences = append(fences, core.Fence{Key: key, Token: token})
	}
	return InTx(ctx, db, lease, opts, func(ctx context.Context, tx *sql.Tx) error {
		if err := t.claimAll(ctx, tx, fences); err != nil {
			return err
		}
		return fn(ctx, tx)
	})
}

// claimAll claims fences in sorted order. Of two tokens for a key the greater comes first, so
// that the smaller is refused.
func (t Table) claimAll(ctx context.Context, tx *sql.Tx, fences []core.Fence) error {
	slices.SortFunc(fences, func(a, b core.Fence) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(b.Token, a.Token))
	})
	for _, f := range slices.Compact(fences) {
		if err := t.Claim(ctx, tx, f.Key, f.Token); err != nil {
			return err
		}
	}
	return nil
}

// Fence returns a function for [core.Fenced]. It claims the fences of a request in a separate
// transaction, which has ended when the handler begins. The error of the function matches
// [ErrStale] or [core.ErrUnavailable], or has the cause of ctx if ctx has ended. A claim waits for
// a transaction that has claimed the fence for at most 2 s: the transaction can be of the caller,
// which waits for the answer. A caller commits before it calls a service with the same database.
func (t Table) Fence(db *sql.DB) func(ctx context.Context, fences []core.Fence) error {
	return func(ctx context.Context, fences []core.Fence) error {
		waiting, cancel := context.WithTimeoutCause(ctx, fenceWait, errFenceWait)
		defer cancel()
		err := t.fence(waiting, db, fences)
		switch {
		case err == nil, errors.Is(err, ErrStale):
			return err
		case ctx.Err() != nil: // which says nothing about the database
			return ended(ctx, err)
		}
		return fmt.Errorf("%w: %w", core.ErrUnavailable, ended(waiting, err))
	}
}

// fenceWait bounds the claim of a request.
const fenceWait = 2 * time.Second

var errFenceWait = fmt.Errorf("the claim of a fence had no result within %v: a transaction keeps the fence, perhaps the open transaction "+
	"of the caller that waits for this request; commit before the call", fenceWait)

func (t Table) fence(ctx context.Context, db *sql.DB, fences []core.Fence) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := t.claimAll(ctx, tx, slices.Clone(fences)); err != nil {
		return err
	}
	return tx.Commit()
}

// Prune deletes the fences that were last claimed before the given time, and
// returns how many it deleted. A fence is not needed any more when no process is
// left that could still use a smaller token. So choose a time longer ago than a
// process can have been stopped: days. Prune relies on tokens that are times, in µs
// since 1970, as the tokens of the stores on Redis and PostgreSQL are. The tokens of a consensus
// system (package casstore) are above all times until the year 2112: Prune leaves them. Its
// error comes from the database.
func (t Table) Prune(ctx context.Context, db *sql.DB, before time.Time) (int64, error) {
	result, err := db.ExecContext(ctx, "DELETE FROM "+t.name()+" WHERE token < $1", before.UnixMicro())
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// Column is a fence in the rows that it protects: a column of type bigint, NOT NULL
// DEFAULT 0. It needs no other table, and no separate row for each key. All names
// become part of the statements as they are, and must not come from a request. The
// methods are safe for concurrent use.
type Column struct {
	Table string // the table with the protected rows
	ID    string // the key column, or a unique column, that identifies a row
	Fence string // the column of the fence
}

// Claim claims a row for a token and locks it, under the conditions of [Table.Claim].
// Its error matches [sql.ErrNoRows] if there is no such row: if two transactions create
// one, the primary key of the table decides between them.
func (c Column) Claim(ctx context.Context, tx *sql.Tx, id any, token int64) error {
	return claim(ctx, tx, fmt.Sprint(id), token, statement{
		"UPDATE " + c.Table + " SET " + c.Fence + " = $1 WHERE " + c.ID + " = $2 AND " + c.Fence + " <= $1",
		[]any{token, id},
	}, statement{
		"SELECT " + c.Fence + " FROM " + c.Table + " WHERE " + c.ID + " = $1 AND " + c.Fence + " > $2",
		[]any{id, token},
	})
}

// statement is a statement with its parameters in the order of their numbers: some
// drivers for SQLite count, others read the number.
type statement struct {
	text string
	args []any
}

// claim runs a statement that changes one row if the token may have it, and
// another that finds the larger token if not.
func claim(ctx context.Context, tx *sql.Tx, key string, token int64, take, find statement) error {
	if err := CheckToken(key, token); err != nil {
		return err
	}
	if len(core.Fences(ctx)) == 0 {
		return claimNow(ctx, tx, key, token, take, find)
	}
	waiting, cancel := context.WithTimeoutCause(ctx, fenceWait, errFenceWait)
	defer cancel()
	err := claimNow(waiting, tx, key, token, take, find)
	if err != nil && ctx.Err() == nil && waiting.Err() != nil {
		err = fmt.Errorf("%w: %w", core.ErrUnavailable, ended(waiting, err))
	}
	return err
}

func claimNow(ctx context.Context, tx *sql.Tx, key string, token int64, take, find statement) error {
	result, err := tx.ExecContext(ctx, take.text, take.args...)
	if err != nil {
		return fmt.Errorf("interlock: claim %q: %w", key, err)
	}
	changed, err := result.RowsAffected()
	if err != nil {
		return fmt.Errorf("interlock: claim %q: %w", key, err)
	}
	if changed > 0 {
		return nil
	}
	var latest int64
	if err := tx.QueryRowContext(ctx, find.text, find.args...).Scan(&latest); err != nil {
		return fmt.Errorf("interlock: claim %q: %w", key, err)
	}
	return &StaleError{Key: key, Token: token, Latest: latest}
}

const (
	// commitWait bounds a commit. It only matters when the database does not answer.
	commitWait = 10 * time.Second
	// driverWait bounds the time that a driver takes to return after that.
	driverWait = 500 * time.Millisecond
)

// InTx runs fn in a transaction that does not outlive the lease. A nil lease stands for the
// lease of ctx. Without a lease, in a handler under a rule of [core.Fenced], the claim alone
// protects the transaction: the lock is the caller's. The transaction begins only while the lease is valid, and just before the commit InTx asks the
// store whether the lock is still held ([core.Lease.Check]). InTx claims nothing by
// itself: fn must claim before it reads ([Column.Claim]), or [Table.InTx] is used.
// fn gets a context that ends with ctx and with the lease. fn must neither commit
// nor roll back.
//
// If InTx returns an error, nothing was committed, with one exception: the error of
// the commit itself leaves that open, if the connection broke or ten seconds went
// by. The error matches [core.ErrLost] (or [core.ErrMaxHold], [core.ErrReleased])
// if the lease has ended, the cause of ctx if ctx has ended, [core.ErrUnavailable]
// if the store did not answer, and [core.ErrNoLease] if there is neither a lease nor a fence
// in ctx (a guard that failed open). Any other error comes from fn or from the database.
func InTx(
	ctx context.Context, db *sql.DB, lease *core.Lease, opts *sql.TxOptions, fn func(context.Context, *sql.Tx) error,
) error {
	if lease == nil {
		lease = core.LeaseFromContext(ctx)
	}
	if err := lease.Err(); err != nil && (lease != nil || len(core.Fences(ctx)) == 0) {
		return err // core.ErrNoLease without a lease
	}
	ctx, cancel := context.WithCancelCause(ctx) // which may be any, not only the lease's own
	defer cancel(nil)
	defer context.AfterFunc(lease.Context(), func() { cancel(context.Cause(lease.Context())) })()

	// ctx ends the waiting for a connection, and the statements, but not the
	// transaction: after an interrupted commit its outcome would be unknown.
	txCtx, cancelTx := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelTx()
	begun := context.AfterFunc(ctx, cancelTx)
	tx, err := db.BeginTx(txCtx, opts)
	begun()
	if err != nil {
		return ended(ctx, err)
	}
	// After a panic too. Where it fails, the connection is broken and the
	// transaction gone with it, or committed.
	defer func() { _ = tx.Rollback() }()

	if err := fn(ctx, tx); err != nil {
		return ended(ctx, err)
	}
	// The fence alone keeps a stale transaction from undoing another's. The check is for a
	// case that the fence does not see: another holder has the lock and has not claimed
	// anything yet.
	if lease != nil {
		if err := lease.Check(ctx); err != nil {
			return ended(ctx, err)
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := commit(tx, cancelTx); err != nil {
		return fmt.Errorf("interlock: commit: %w", err)
	}
	return nil
}

// commit commits a transaction. If the database does not answer, cancel ends the transaction;
// then commit returns, also if the driver does not: lib/pq waits until the server answers or
// the connection breaks.
func commit(tx *sql.Tx, cancel context.CancelFunc) error {
	done := make(chan error, 1) // has room: the caller may have left
	go func() { done <- tx.Commit() }()
	select {
	case err := <-done:
		return err
	case <-time.After(commitWait):
		cancel()
	}
	select {
	case err := <-done:
		return err
	case <-time.After(driverWait):
		return context.DeadlineExceeded
	}
}

// ended adds to an error why the context has ended, if it has: drivers only say
// that the statement was cancelled.
func ended(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if cause == nil || errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w: %w", cause, err)
}
