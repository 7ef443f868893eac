package explore

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/interlock-go/interlock/core/idempotency/record"
)

var (
	// ErrDuplicate says that a row with the key of [Tx.Insert] exists.
	ErrDuplicate = errors.New("explore: a row with this key exists")
	// ErrFenced says that a transaction with a greater token was committed ([Tx.Fence]).
	ErrFenced = errors.New("explore: a transaction with a greater token was committed")
)

// Tx is a transaction of the database of a run, a table of rows by key. It reads committed rows and its own, and locks no
// row: of two transactions that write one row the later commit counts. Its rows become visible at the commit. A transaction of a process that
// dies before its commit is rolled back. A Tx is for one goroutine.
type Tx struct {
	process *Process
	cause   string
	rows    map[string]*string // nil: deleted
	fresh   map[string]bool    // by Insert
	fences  map[string]int64   // by key
	ended   bool
}

// Begin begins a transaction.
func (p *Process) Begin(ctx context.Context) *Tx {
	return &Tx{process: p, cause: causeOf(ctx), rows: map[string]*string{}, fresh: map[string]bool{}, fences: map[string]int64{}}
}

// Get returns the row with a key.
func (t *Tx) Get(key string) (value string, ok bool) {
	if row, own := t.rows[key]; own {
		if row == nil {
			return "", false
		}
		return *row, true
	}
	return t.process.world.Row(key)
}

// Put writes the row with a key.
func (t *Tx) Put(key, value string) { t.rows[key] = &value }

// Delete deletes the row with a key, if there is one.
func (t *Tx) Delete(key string) { t.rows[key] = nil }

// Insert writes a new row. The error matches [ErrDuplicate] if there is one with the key; a row that another
// transaction commits before this one is found by Commit.
func (t *Tx) Insert(key, value string) error {
	if _, ok := t.Get(key); ok {
		return fmt.Errorf("%w: %s", ErrDuplicate, key)
	}
	t.rows[key], t.fresh[key] = &value, true
	return nil
}

// Fence has the commit fail if a transaction with a greater token for the key was committed before, as a fence in a
// database does (package core/fencing).
func (t *Tx) Fence(key string, token int64) { t.fences[key] = token }

// Rollback ends the transaction without its rows. After Commit it does nothing.
func (t *Tx) Rollback() { t.ended = true }

// Commit makes the rows visible to others. The process can die before and after it. The error matches [ErrLost] if
// the outcome is unknown, as when the connection breaks. Nothing was committed if it matches [ErrDuplicate] or [ErrFenced].
func (t *Tx) Commit() error {
	if t.ended {
		return errors.New("explore: the transaction has ended already")
	}
	t.ended = true
	return t.process.call(t.cause, "COMMIT", func() error {
		t.process.world.mu.Lock()
		defer t.process.world.mu.Unlock()
		return t.apply()
	})
}

// apply writes the rows. The caller holds the mutex of the world.
func (t *Tx) apply() error {
	w := t.process.world
	if err := t.fits(); err != nil {
		return err
	}
	maps.Copy(w.fences, t.fences)
	for key, row := range t.rows {
		if row == nil {
			delete(w.rows, key)
		} else {
			w.rows[key] = *row
		}
	}
	return nil
}

// fits reports a row or a token that another transaction has written meanwhile. The caller holds the mutex of the world.
func (t *Tx) fits() error {
	for key := range t.fresh {
		if _, ok := t.process.world.rows[key]; ok {
			return fmt.Errorf("%w: %s", ErrDuplicate, key)
		}
	}
	for key, token := range t.fences {
		if t.process.world.fences[key] > token {
			return fmt.Errorf("%w: %s", ErrFenced, key)
		}
	}
	return nil
}

// Row returns the committed row with a key.
func (w *World) Row(key string) (value string, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	value, ok = w.rows[key]
	return value, ok
}

// Rows returns all committed rows.
func (w *World) Rows() map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.rows)
}

// Tx returns the transaction of the request, as pgstore.Tx does for a service with its records in PostgreSQL: the
// engine commits it together with the answer, or rolls it back. The caller does neither. See [record.Enlist] for the
// errors.
func (p *Process) Tx(ctx context.Context) (*Tx, error) {
	u, err := record.Enlist(ctx, func(_ context.Context, _ record.Claim) (record.Unit, error) {
		return &unit{p.Begin(ctx)}, nil
	})
	if err != nil {
		return nil, err
	}
	return u.(*unit).Tx, nil
}

// unit is the transaction of a request.
type unit struct{ *Tx }

func (u *unit) Commit(ctx context.Context, req record.CommitRequest) (record.CommitReply, error) {
	if u.ended {
		return record.CommitReply{}, record.ErrEnded
	}
	u.ended = true
	w := u.process.world
	var rep record.CommitReply
	var failed error
	err := u.process.call(u.cause, "COMMIT", func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if failed = u.fits(); failed == nil {
			if rep, failed = w.store.Commit(ctx, req); failed == nil && rep.Stored() {
				_ = u.apply()
			}
		}
		return nil
	})
	if err == nil && failed != nil {
		err = fmt.Errorf("%w: %w", record.ErrRolledBack, failed)
	}
	return rep, err
}

func (u *unit) Rollback(context.Context) error {
	if u.ended {
		return record.ErrEnded
	}
	u.ended = true
	return nil
}
