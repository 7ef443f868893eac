package pgstore

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/internal/pgpool"
)

// errGone says that the record of a transaction is gone.
var errGone = errors.New("the record is gone: another attempt had the claim, or the record was deleted")

// settleWait is the part of the time for a commit that is kept for finding out its outcome.
const settleWait = 3 * time.Second

// Transaction is the transaction of a request. It has the statements of [sql.Tx]; the
// engine commits it or rolls it back. Like a [sql.Tx] it is safe for concurrent use, and
// runs one statement at a time. When the context of a statement ends, pgx returns; lib/pq
// waits until the server has answered.
type Transaction struct {
	tx   *sql.Tx
	conn *sql.Conn
}

// Tx returns the transaction of the request that ctx belongs to. The first call begins it
// and claims the fences of all locks that ctx runs under; later calls return the same.
//
// The error matches [record.ErrNoAttempt] if ctx does not belong to an idempotent
// endpoint, [record.ErrNoRecord] if the request has no record ([Store.InTx] serves it as
// well), [core.ErrConfig] if the records of the endpoint
// are not in a [Store] (or in a store that wraps it and has a method Unwrap() of an
// [record.Store]), [core.ErrLost] if the claim is lost or the handler has returned,
// and fencing.ErrStale if a later holder of a lock has begun. Any other error comes from
// the database. Tx is safe for concurrent use.
func Tx(ctx context.Context) (*Transaction, error) {
	unit, err := record.Enlist(ctx, begin)
	if err != nil {
		return nil, err
	}
	own, ok := unit.(*work)
	if !ok {
		return nil, fmt.Errorf("%w: pgstore.Tx: the request has a transaction of another package already", core.ErrConfig)
	}
	return &own.Transaction, nil
}

// ExecContext does what [sql.Tx.ExecContext] does.
func (t *Transaction) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return t.tx.ExecContext(ctx, query, args...)
}

// QueryContext does what [sql.Tx.QueryContext] does.
func (t *Transaction) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return t.tx.QueryContext(ctx, query, args...)
}

// QueryRowContext does what [sql.Tx.QueryRowContext] does.
func (t *Transaction) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return t.tx.QueryRowContext(ctx, query, args...)
}

// PrepareContext does what [sql.Tx.PrepareContext] does.
func (t *Transaction) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	return t.tx.PrepareContext(ctx, query)
}

// SQL returns the transaction for packages that want a [sql.Tx]. Neither commit it nor
// roll it back, also not by a statement: the outcome of the request is then unknown, and
// the answer of its handler is not sent.
func (t *Transaction) SQL() *sql.Tx { return t.tx }

// Conn returns the connection of the transaction, for packages that show it in the way of
// their driver (pgxstore.Tx). Do not close it, and begin nothing on it.
func (t *Transaction) Conn() *sql.Conn { return t.conn }

// work is a transaction as a [record.Unit].
type work struct {
	Transaction
	store  *Store
	token  string             // of the claim
	life   context.Context    // of the transaction
	cancel context.CancelFunc // ends it, also in the middle of a statement
}

// Transactional implements [record.Transactor].
func (s *Store) Transactional() bool { return true }

// begin begins the transaction of an attempt.
func begin(ctx context.Context, claim record.Claim) (_ record.Unit, err error) {
	s := unwrap(claim.Store)
	if s == nil {
		return nil, fmt.Errorf("%w: pgstore.Tx: the records of the endpoint are in a %T, and not in a *pgstore.Store", core.ErrConfig, claim.Store)
	}
	// ctx ends the waiting for a connection, and not the transaction: after an
	// interrupted commit its outcome would be unknown.
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	attached := context.AfterFunc(ctx, cancel)
	defer attached()
	conn, err := s.writable(life)
	if err != nil {
		cancel()
		return nil, beginning(ctx, err)
	}
	tx, err := conn.BeginTx(life, &sql.TxOptions{Isolation: s.isolation})
	if err != nil {
		if pgpool.IsReadOnly(err) {
			s.retire(life, conn)
		}
		cancel()
		_ = conn.Close() // back to the pool
		return nil, beginning(ctx, err)
	}
	attached()
	w := &work{Transaction{tx, conn}, s, claim.Token, life, cancel}
	defer func() {
		if err != nil {
			w.abort()
		}
	}()
	idle, wait := s.idle, s.lockWait
	if idle == 0 {
		idle = claim.Lease * 2 / 3
	}
	if wait == 0 {
		wait = claim.Lease / 3
	}
	// Without arguments these are one round trip, in the simple protocol. None is a query,
	// so the handler can still set the isolation level.
	if _, err = tx.ExecContext(ctx, "SET LOCAL idle_in_transaction_session_timeout = "+milliseconds(idle)+
		"; SET LOCAL lock_timeout = "+milliseconds(wait)+
		"; SET LOCAL "+attempt+" = '"+strings.ReplaceAll(claim.Token, "'", "''")+"'"); err != nil {
		return nil, beginning(ctx, err)
	}
	for _, f := range core.Fences(ctx) {
		if err = s.fences.Claim(ctx, tx, f.Key, f.Token); err != nil {
			return nil, beginning(ctx, err)
		}
	}
	return w, nil
}

// suspicion bounds the time after a connection that only reads while others are looked at.
const suspicion = time.Minute

// writable returns a connection for the transaction of a handler. After a failover some may
// be to a standby. The first statement of a handler would be too late to find that out.
func (s *Store) writable(ctx context.Context) (*sql.Conn, error) {
	for end := time.Now().Add(s.timeout); ; {
		conn, err := s.db.Conn(ctx)
		suspect := time.Since(time.Unix(0, s.readOnly.Load())) < suspicion && time.Now().Before(end)
		if err != nil || !suspect || !s.retire(ctx, conn) {
			return conn, err
		}
		_ = conn.Close()
	}
}

// retire ends a connection that only reads, and reports whether it did.
func (s *Store) retire(ctx context.Context, conn *sql.Conn) bool {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if !pgpool.Retire(ctx, conn) {
		return false
	}
	s.readOnly.Store(time.Now().UnixNano())
	return true
}

// unwrap returns the Store in a store, or in a store that wraps it and has a method
// Unwrap; nil if there is none.
func unwrap(store record.Store) *Store {
	for {
		switch s := store.(type) {
		case *Store:
			return s
		case interface{ Unwrap() record.Store }:
			store = s.Unwrap()
		default:
			return nil
		}
	}
}

// beginning is the error of a transaction that could not be begun.
func beginning(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return fmt.Errorf("interlock: beginning the transaction of the request: %w", explain(err))
}

// milliseconds is a duration as a setting of PostgreSQL, where 0 would be no limit.
func milliseconds(d time.Duration) string {
	return strconv.FormatInt(max(d.Milliseconds(), 1), 10)
}

// Commit implements [record.Unit].
func (w *work) Commit(ctx context.Context, ask record.CommitRequest) (record.CommitReply, error) {
	ctx, cancel := until(ctx, ask.Deadline)
	defer cancel()
	// A caller that leaves abandons the claim. If that comes before the first statement of
	// the commit is executed, the statement finds no claim, and the transaction is rolled
	// back. If it comes later, it waits for the row.
	return inTime(ctx, w.store, func() (record.CommitReply, error) { return w.commit(ctx, ask) })
}

func (w *work) commit(ctx context.Context, ask record.CommitRequest) (record.CommitReply, error) {
	defer w.close()
	deadline := ask.Deadline.Add(-settleWait)
	// Until the commit is sent, everything that fails ends in a rollback.
	bound, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
	to, err := w.store.store(bound, w.tx, ask, false)
	rep := to.CommitReply
	cancel()
	switch {
	case err != nil:
		return rep, w.failed(err)
	case !rep.Stored():
		w.abort()
		if to.read { // and is to be replayed
			_, err = w.store.try(ctx, ask.Deadline, func(ctx context.Context, q querier) error {
				_, err := w.store.confirm(ctx, q, ask.ID)
				return err
			})
			if err != nil {
				err = fmt.Errorf("%w: %w", record.ErrRolledBack, err)
			}
		}
		return rep, err
	}
	if err := w.finish(deadline, func() (bool, error) { return w.store.settle(ctx, ask) }); err != nil {
		return rep, err
	}
	w.store.completed(ask.ID, to.awaited)
	return rep, nil
}

// failed rolls back after a statement that failed before the commit, and returns the error of the
// commit.
func (w *work) failed(err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return record.ErrEnded
	}
	w.abort()
	switch {
	case pgpool.State(err) == "25P02": // in_failed_sql_transaction
		return record.ErrAborted
	case errors.Is(err, record.ErrEnded):
		return err
	}
	return fmt.Errorf("%w: %w", record.ErrRolledBack, explain(err))
}

// finish sends the commit. If that gets no answer, settle finds out whether it was carried out.
func (w *work) finish(deadline time.Time, settle func() (committed bool, err error)) error {
	timer := time.AfterFunc(time.Until(deadline), w.cancel)
	err := w.tx.Commit()
	if !timer.Stop() && err == nil {
		err = context.DeadlineExceeded // as ended says
	}
	switch {
	case err == nil:
		return nil
	case !executed(err):
		return fmt.Errorf("%w: %w", record.ErrRolledBack, err)
	}
	w.close() // one connection at a time
	committed, asking := settle()
	switch {
	case asking != nil:
		return fmt.Errorf("%w: commit: %w", asking, err)
	case !committed:
		return fmt.Errorf("%w: %w", record.ErrRolledBack, err)
	}
	return nil
}

// close gives the connection back to the pool. The transaction has ended.
func (w *work) close() {
	w.cancel()
	_ = w.conn.Close() // an error says that it is closed already
}

// settle finds out, on another connection, whether a transaction was committed after its
// commit got no answer. Before its commit it changed the row of the record, so the row is
// locked until the transaction has ended; then the row tells. The answer comes when the
// synchronous standbys have the transaction, too ([Store.confirm]).
func (s *Store) settle(ctx context.Context, ask record.CommitRequest) (committed bool, err error) {
	_, err = s.try(ctx, ask.Deadline, func(ctx context.Context, q querier) error {
		r, err := s.settled(ctx, q, ask.ID)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		done := r.state.String != "c"
		committed = err == nil && r.token.String == ask.Token && done
		if ask.Interim { // a job may have finished since
			committed = err == nil && r.heldBy.String == ask.Token && (done || bytes.Equal(r.response, ask.Response))
		}
		return nil
	})
	return committed, err
}

// rollbackWait bounds a rollback. After it the connection is closed, which rolls back as
// well.
const rollbackWait = 2 * time.Second

// Rollback implements [record.Unit].
//
// After a failed statement the server does not say which transaction it is in. It is taken for the
// transaction that the engine has begun: for any other, the handler would have had to end that
// one, and to begin the failed one by a statement.
func (w *work) Rollback(ctx context.Context) error {
	ctx, cancel := until(ctx, time.Now().Add(rollbackWait))
	defer cancel()
	ended, _ := inTime(ctx, w.store, w.rollback) // in time or not, nothing more will be committed
	if ended {
		return record.ErrEnded
	}
	return nil
}

// rollback also reports whether the handler has ended the transaction.
func (w *work) rollback() (ended bool, _ error) {
	timer := time.AfterFunc(rollbackWait, w.cancel)
	defer timer.Stop()
	err := own(w.life, w.tx, w.token)
	ended = errors.Is(err, record.ErrEnded) || errors.Is(err, sql.ErrTxDone) && w.life.Err() == nil
	w.abort()
	return ended, nil
}

// abort rolls back, and gives the connection back.
func (w *work) abort() {
	defer w.close()
	defer time.AfterFunc(rollbackWait, w.cancel).Stop()
	// If it fails, the connection is broken, and the server rolls back by itself.
	if w.tx.Rollback() == nil {
		// The failure may be that the connection only reads.
		w.store.retire(w.life, w.conn)
	}
}

// attempt is a setting that has the token of the claim, for as long as the transaction
// that [begin] has begun. After a COMMIT or ROLLBACK, which a handler can send as a
// statement, it is empty, also in a transaction that the handler has begun since.
const attempt = "interlock.attempt"

// own returns [record.ErrEnded] if q is not, or no more, in the transaction of a claim.
func own(ctx context.Context, q querier, token string) error {
	var found string
	err := q.QueryRowContext(ctx, "SELECT coalesce(current_setting('"+attempt+"', true), '')").Scan(&found)
	if err == nil && found != token {
		err = record.ErrEnded
	}
	return err
}
