package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/gather"
	"github.com/interlock-go/interlock/core/idempotency/record"
)

// BatchSection carries out the items of a batch in a transaction, as [gather.Section] does. It neither
// commits nor rolls back. An item with an error of [gather.Errors] must have no effect in tx; [Each]
// makes a BatchSection that sees to that.
type BatchSection[Req, Res any] func(ctx context.Context, tx *Transaction, key string, batch []Req) ([]Res, error)

// Batches gathers the requests of idempotent endpoints for each key. Make it with [Gather].
type Batches[Req, Res any] struct {
	store   *Store
	section BatchSection[Req, Res]
	group   *gather.Group[call[Req], Res]
}

// call is an item, and its place in the transaction.
type call[Req any] struct {
	ctx    context.Context // of the caller
	req    Req
	member *member
}

// Gather makes [Batches]: n requests with n idempotency keys for one key of the locker become one
// lock, one transaction and one commit, which stores the effects and all n answers. A handler of any
// framework calls [Batches.Do] in place of [Tx]:
//
//	debits := pgstore.Gather(store, locker, debitAll, core.MaxHold(10*time.Second))
//
//	balance, err := debits.Do(r.Context(), "account/42", Debit{Amount: 5})
//
// The transaction is committed when the handlers of all its requests have answered: a crash leaves all
// of the batch, or nothing. If a handler fails (a status of 500 or more, a panic) after its item
// was carried out, or takes longer than a third of its lease, the batch is rolled back. The other requests
// then get idempotency-rolled-back (503), as after a refused commit, and a retry is carried out. So let
// a handler do nothing after Do that can fail. A handler that answers an error of its item with a status
// that is stored (404, 422) undoes no other item.
//
// The engines must keep their records in the store. The lock may be on any store; the transaction claims
// its fencing token first. Gather panics as [gather.New] does, and accepts its options except
// gather.MostBytes.
func Gather[Req, Res any](s *Store, locker *core.Locker, section BatchSection[Req, Res], opts ...gather.Option) *Batches[Req, Res] {
	if s == nil || section == nil {
		panic(fmt.Errorf("%w: pgstore.Gather with a nil store or section", core.ErrConfig))
	}
	b := &Batches[Req, Res]{store: s, section: section}
	b.group = gather.New(locker, b.carryOut, opts...)
	return b
}

// Do brings an item, as [gather.Group.Do] does. ctx is the context of a request to an idempotent endpoint.
// A request without a record (idempotency.Optional) gets its result after the commit.
//
// The error is one of gather.Group.Do, or the section's. It matches [record.ErrNoAttempt] if ctx does not
// belong to an idempotent endpoint, [core.ErrConfig] if the request has a transaction already or keeps
// its record elsewhere, [core.ErrLost] if its claim is lost, and [record.ErrRolledBack] if the database
// did not commit. In these cases the item was not carried out. A request may bring one item: its transaction keeps
// the lock until the request is answered.
func (b *Batches[Req, Res]) Do(ctx context.Context, key string, req Req) (Res, error) {
	var res Res
	leave, err := b.store.join(ctx)
	if err != nil {
		return res, err
	}
	defer leave()
	m := &member{}
	res, err = b.group.Do(ctx, key, call[Req]{ctx, req, m})
	if err != nil {
		m.leave()
		return res, err
	}
	if t := m.together(); t != nil && m.unrecorded {
		select {
		case <-t.done:
			err = t.err
		case <-ctx.Done():
			err = fmt.Errorf("%w: %q: %w", gather.ErrUnknown, key, context.Cause(ctx))
		}
	}
	return res, err
}

// carryOut is the section of the group.
func (b *Batches[Req, Res]) carryOut(ctx context.Context, key string, batch []call[Req]) ([]Res, error) {
	t := newTogether(b.store)
	errs := make(gather.Errors, len(batch))
	var reqs []Req
	var places []int // of the items of reqs in the batch
	for i, c := range batch {
		if errs[i] = t.enlist(c.ctx, c.member); errs[i] == nil {
			reqs, places = append(reqs, c.req), append(places, i)
		}
	}
	if len(reqs) == 0 {
		t.end(nil)
		return nil, errs
	}
	results, each, err := b.inTx(ctx, t, key, reqs)
	if err != nil {
		for _, i := range places {
			errs[i] = err
		}
		return nil, errs
	}
	all := make([]Res, len(batch))
	for n, i := range places {
		if each != nil && each[n] != nil {
			errs[i] = each[n]
			batch[i].member.undo()
			continue
		}
		if len(results) == len(reqs) {
			all[i] = results[n]
		}
	}
	return all, t.seal(errs)
}

// inTx begins the transaction and runs the section in it. After an error the transaction has ended.
func (b *Batches[Req, Res]) inTx(ctx context.Context, t *together, key string, reqs []Req) (results []Res, each gather.Errors, err error) {
	ended := false
	defer func() {
		if !ended { // an error, a panic, or runtime.Goexit
			t.end(record.ErrAborted)
		}
	}()
	if err := t.begin(ctx); err != nil {
		return nil, nil, err
	}
	results, err = b.section(ctx, &t.work.Transaction, key, reqs)
	switch {
	case errors.As(err, &each) && len(each) != len(reqs), err == nil && len(results) != len(reqs):
		return nil, nil, fmt.Errorf("%w: %q: %d results and %d errors for %d items; rolled back", gather.ErrResults, key, len(results), len(each), len(reqs))
	case err != nil && each == nil:
		return nil, nil, err
	}
	ended = true
	return results, each, nil
}

// Each makes a [BatchSection] of a function for one item. Each item has a savepoint: an item that
// returns an error is rolled back to it, and does not undo the others.
func Each[Req, Res any](item func(ctx context.Context, tx *Transaction, key string, req Req) (Res, error)) BatchSection[Req, Res] {
	return func(ctx context.Context, tx *Transaction, key string, batch []Req) ([]Res, error) {
		results, errs, failed := make([]Res, len(batch)), make(gather.Errors, len(batch)), false
		next := "SAVEPOINT interlock_item"
		for i, req := range batch {
			if _, err := tx.ExecContext(ctx, next); err != nil {
				return nil, err
			}
			next = "RELEASE SAVEPOINT interlock_item; SAVEPOINT interlock_item"
			if results[i], errs[i] = item(ctx, tx, key, req); errs[i] == nil {
				continue
			}
			failed = true
			if _, err := tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT interlock_item"); err != nil {
				return nil, err
			}
		}
		if failed {
			return results, errs
		}
		return results, nil
	}
}
