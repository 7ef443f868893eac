package pglock

import (
	"context"
	"database/sql"
	"errors"
)

// lone sends a batch of one request by a statement for the simple case. It reports false
// if there is none, or if the case was not simple.
func (w *worker) lone(ctx context.Context) (decided bool, err error) {
	s := w.lane.store
	if len(w.batch) != 1 {
		return false, nil
	}
	r := w.batch[0]
	var rows *sql.Rows
	switch {
	case r.kind == acquires:
		rows, err = w.conn.QueryContext(ctx, s.text.Load().take, []byte(r.key), r.owner, ttl(r), r.waiter, s.rowTimeout())
	case r.kind == releases && r.waiter == "":
		rows, err = w.conn.QueryContext(ctx, s.text.Load().free, []byte(r.key), r.owner, r.token, s.rowTimeout())
	default:
		return false, nil
	}
	var a answer
	err = each(rows, err, func() error {
		a.there = true
		if r.kind == releases {
			a.code = 1
			return rows.Scan(&a.called)
		}
		return a.scanGrant(rows, &a.code)
	})
	if err != nil || !a.there || a.code == 2 {
		return false, err
	}
	r.answer = a
	return true, nil
}

// query sends a batch by the statement for many requests.
func (w *worker) query(ctx context.Context) error {
	s, kind := w.lane.store, w.batch[0].kind
	rows, err := w.conn.QueryContext(ctx, s.text.Load().of[kind], s.arguments(w.batch)...)
	return each(rows, err, func() (err error) {
		var i int
		a := answer{there: true}
		switch kind {
		case acquires:
			err = a.scanGrant(rows, &i, &a.code)
		case renews:
			err = rows.Scan(&i, &a.code)
		case releases:
			err = rows.Scan(&i, &a.code, &a.list, &a.called)
		case declines:
			err = rows.Scan(&i, &a.code, &a.list, &a.called)
		}
		if err != nil {
			return err
		}
		if i < 1 || i > len(w.batch) {
			return errOther
		}
		w.batch[i-1].answer = a
		return nil
	})
}

// scanGrant reads a row that says whether a lock was granted; before is for the columns
// before those.
func (a *answer) scanGrant(rows *sql.Rows, before ...any) error {
	return rows.Scan(append(before, &a.token, &a.holder, &a.remains, &a.listed)...)
}

// each calls f for each row of an answer. Only when all rows are read, and the end of the
// answer too, is it known that the server has committed.
func each(rows *sql.Rows, failed error, f func() error) (err error) {
	if failed != nil {
		return failed
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := f(); err != nil {
			return err
		}
	}
	return rows.Err()
}
