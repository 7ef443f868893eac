package gather

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/interlock-go/interlock/core/internal/pgpool"
)

// errNotBegun marks the error of an item that a section did not begin: its lease was lost before.
var errNotBegun = errors.New("interlock: the item was not begun")

// Each makes a [Section] of a function for one item. It calls item for each item of a batch, in their
// order, on one goroutine. An error is that item's alone. When the context of the section has ended,
// it begins no further item.
func Each[Req, Res any](item func(ctx context.Context, key string, req Req) (Res, error)) Section[Req, Res] {
	return func(ctx context.Context, key string, batch []Req) ([]Res, error) {
		o := newEach[Res](len(batch))
		for i, req := range batch {
			if o.begins(ctx, i) {
				res, err := item(ctx, key, req)
				o.set(i, res, err)
			}
		}
		return o.end()
	}
}

// Beginner begins transactions: a *sql.DB or a *sql.Conn.
type Beginner interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// InTx makes a [Section] of a function for one item: all items of a batch are carried out in one
// transaction, one after the other, and have one commit. It is for PostgreSQL, and for other databases
// with savepoints and with errors that have a method SQLState() string. opts may be nil.
//
// An item that returns an error is rolled back to its savepoint, and does not undo the others. The
// function item neither commits nor rolls back. A batch of one has no savepoint.
//
// If the database refuses the commit (a deferred constraint, a serialization failure), the transaction
// was rolled back. The items are then carried out again in two transactions with half of them each,
// and so on, until a single item fails. item must therefore have no effect outside of tx. A
// commit without an answer gives its items [ErrUnknown].
func InTx[Req, Res any](
	db Beginner, opts *sql.TxOptions, item func(ctx context.Context, tx *sql.Tx, key string, req Req) (Res, error),
) Section[Req, Res] {
	return func(ctx context.Context, key string, batch []Req) ([]Res, error) {
		o := newEach[Res](len(batch))
		t := inTx[Req, Res]{db, opts, item, key, batch, o}
		t.carryOut(ctx, 0, len(batch))
		return o.end()
	}
}

// each has the outcomes of a batch by item.
type each[Res any] struct {
	results []Res
	errs    Errors
	failed  bool
}

func newEach[Res any](n int) *each[Res] {
	return &each[Res]{results: make([]Res, n), errs: make(Errors, n)}
}

// begins reports whether an item may begin; else it has an error.
func (o *each[Res]) begins(ctx context.Context, i int) bool {
	if ctx.Err() == nil {
		return true
	}
	o.fail(i, fmt.Errorf("%w: %w", errNotBegun, context.Cause(ctx)))
	return false
}

func (o *each[Res]) fail(i int, err error) {
	var none Res
	o.set(i, none, err)
}

func (o *each[Res]) set(i int, res Res, err error) {
	o.results[i], o.errs[i] = res, err
	o.failed = o.failed || err != nil
}

func (o *each[Res]) end() ([]Res, error) {
	if o.failed {
		return o.results, o.errs
	}
	return o.results, nil
}

// inTx is a batch that is carried out in transactions.
type inTx[Req, Res any] struct {
	db    Beginner
	opts  *sql.TxOptions
	item  func(ctx context.Context, tx *sql.Tx, key string, req Req) (Res, error)
	key   string
	batch []Req
	o     *each[Res]
}

// carryOut carries out the items from one to before another.
func (t *inTx[Req, Res]) carryOut(ctx context.Context, from, to int) {
	if ctx.Err() != nil {
		for i := from; i < to; i++ {
			t.o.begins(ctx, i)
		}
		return
	}
	tx, err := t.db.BeginTx(ctx, t.opts)
	if err != nil {
		t.fail(from, to, fmt.Errorf("interlock: beginning the transaction of a batch: %w", err))
		return
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it has no effect, and a broken connection rolls back by itself
	if err := t.items(ctx, tx, from, to); err != nil {
		t.fail(from, to, fmt.Errorf("interlock: the transaction of a batch was rolled back: %w", err))
		return
	}
	done := false
	for i := from; i < to; i++ {
		done = done || t.o.errs[i] == nil
	}
	if !done {
		return // each has its error; the transaction is rolled back
	}
	switch err := tx.Commit(); {
	case err == nil:
	case mayBeCommitted(err):
		t.fail(from, to, fmt.Errorf("%w: committing: %w", ErrUnknown, err))
	case to-from == 1:
		t.fail(from, to, fmt.Errorf("interlock: committing: %w", err))
	default:
		half := (from + to) / 2
		t.carryOut(ctx, from, half)
		t.carryOut(ctx, half, to)
	}
}

// items carries items out in a transaction. An error says that the transaction is of no more use.
func (t *inTx[Req, Res]) items(ctx context.Context, tx *sql.Tx, from, to int) error {
	const begin, end, undo = "SAVEPOINT interlock_item", "RELEASE SAVEPOINT interlock_item", "ROLLBACK TO SAVEPOINT interlock_item"
	several, before := to-from > 1, begin
	for i := from; i < to; i++ {
		if !t.o.begins(ctx, i) {
			continue
		}
		if several {
			if _, err := tx.ExecContext(ctx, before); err != nil {
				return err
			}
		}
		res, err := t.item(ctx, tx, t.key, t.batch[i])
		t.o.set(i, res, err)
		before = end + "; " + begin // without arguments this is one round trip
		if err == nil {
			continue
		}
		if !several {
			return nil // rolled back as a whole
		}
		if _, err := tx.ExecContext(ctx, undo); err != nil {
			return err
		}
	}
	return nil
}

// fail gives the items that have no error an error.
func (t *inTx[Req, Res]) fail(from, to int, err error) {
	for i := from; i < to; i++ {
		if t.o.errs[i] == nil {
			t.o.fail(i, err)
		}
	}
}

// mayBeCommitted reports whether a transaction may be committed after its commit returned err.
func mayBeCommitted(err error) bool {
	if errors.Is(err, sql.ErrTxDone) {
		return false // rolled back before, as when its context ended
	}
	code := pgpool.State(err)
	return code == "" || strings.HasPrefix(code, "08") || strings.HasPrefix(code, "57P")
}
