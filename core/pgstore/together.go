package pgstore

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/gather"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/internal/ident"
	"github.com/interlock-go/interlock/core/internal/lent"
	"github.com/interlock-go/interlock/core/internal/pgpool"
)

// together is a transaction of several attempts. Each attempt has a [record.Unit] in it, and the engine
// ends each unit once: these are the votes. The transaction is committed when all have voted for it. It is rolled
// back with the first vote against it, or when a vote does not come in time.
type together struct {
	store *Store
	token string        // of the transaction
	lease time.Duration // the shortest of the claims
	work  *work         // set by begin
	done  chan struct{} // closed when the transaction has ended
	err   error         // then: why it was not committed

	mu      sync.Mutex
	members []*member // with a record
	sealed  bool      // the section has ended
	ended   bool      // its end has begun
	doomed  bool      // it must not be committed
	timer   *time.Timer
	release func() // of the lock; nil: the section has it
}

var (
	errOther = errors.New("another request of the batch was not committed")
	errSlow  = errors.New("a handler of the batch did not answer in time")
	errGoes  = errors.New("the caller has left the batch")
	errNone  = errors.New("the request has no transaction yet")

	errHas       = fmt.Errorf("%w: pgstore.Batches: the request has a transaction already", core.ErrConfig)
	errElsewhere = fmt.Errorf("%w: pgstore.Batches: the records of the endpoint are not in its store", core.ErrConfig)
)

func newTogether(s *Store) *together {
	return &together{store: s, token: ident.New(), lease: aloneLease, done: make(chan struct{})}
}

// join returns why the request of a context cannot join a batch. A request with a transaction must not wait for
// the lock: its own batch may keep it until the request is answered. The function leave is called when
// the request does not wait any more.
func (s *Store) join(ctx context.Context) (leave func(), err error) {
	leave = func() {}
	_, err = record.Enlist(ctx, func(_ context.Context, claim record.Claim) (record.Unit, error) {
		if unwrap(claim.Store) != s {
			return nil, errElsewhere
		}
		if _, joins := s.joining.LoadOrStore(claim.Token, nil); joins {
			return nil, errHas
		}
		leave = func() { s.joining.Delete(claim.Token) }
		return nil, errNone
	})
	switch {
	case err == nil:
		return leave, errHas
	case errors.Is(err, errNone), errors.Is(err, record.ErrNoRecord):
		return leave, nil
	}
	return leave, err
}

// enlist makes the attempt of a context a member. From here on the engine ends the attempt by the
// transaction, also if its caller leaves.
func (t *together) enlist(ctx context.Context, m *member) error {
	unit, err := record.Enlist(ctx, func(_ context.Context, claim record.Claim) (record.Unit, error) {
		if unwrap(claim.Store) != t.store {
			return nil, errElsewhere
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.left {
			return nil, errGoes
		}
		m.t = t
		t.lease = min(t.lease, claim.Lease)
		return m, nil
	})
	switch {
	case errors.Is(err, record.ErrNoRecord):
		m.mu.Lock()
		defer m.mu.Unlock()
		m.t, m.unrecorded = t, true
		return nil
	case err != nil:
		return err
	case unit != record.Unit(m):
		return errHas
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.members = append(t.members, m)
	return nil
}

// begin begins the transaction, and claims the fences of the lock.
func (t *together) begin(ctx context.Context) error {
	unit, err := begin(ctx, record.Claim{Store: t.store, Token: t.token, Lease: t.lease})
	if err != nil {
		return err
	}
	t.work = unit.(*work) //nolint:forcetypeassert // begin returns no other
	return nil
}

// seal is called at the end of the section. errs are the errors by item. Its result is the error of the
// section: it keeps the lock until the transaction has ended.
func (t *together) seal(errs error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sealed = true
	if len(t.members) == 0 {
		t.ends(t.commit)
	} else {
		t.decide()
	}
	if !t.ended {
		t.timer = time.AfterFunc(t.lease/3, func() { t.giveUp() })
	}
	return &lent.Kept{Err: errs, Take: t.keep}
}

// keep takes the release of the lock over.
func (t *together) keep(release func()) {
	t.mu.Lock()
	select {
	case <-t.done:
		t.mu.Unlock()
		release()
	default:
		t.release = release
		t.mu.Unlock()
	}
}

// giveUp rolls back a transaction with a vote that does not come. It reports false if the end of the
// transaction has begun.
func (t *together) giveUp() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return false
	}
	t.doomed = true
	t.ends(func() { t.rollBack(errSlow) })
	return true
}

// decide ends the transaction if the votes are enough. Called with the mutex held.
func (t *together) decide() {
	if t.doomed {
		t.ends(func() { t.rollBack(errSlow) })
		return
	}
	votes := 0
	for _, m := range t.members {
		switch {
		case !m.voted:
			continue
		case m.ask == nil && !m.undone:
			t.ends(func() { t.rollBack(errOther) })
			return
		}
		votes++
	}
	if votes == len(t.members) && t.sealed {
		t.ends(t.commit)
	}
}

// ends ends the transaction on another goroutine, once. Called with the mutex held.
func (t *together) ends(how func()) {
	if t.ended || t.work == nil || !t.sealed {
		return
	}
	if t.ended = true; t.timer != nil {
		t.timer.Stop()
	}
	run := func() {
		how()
		t.mu.Lock()
		close(t.done)
		release := t.release
		t.mu.Unlock()
		if release != nil {
			release()
		}
	}
	if !t.store.work.Go(run) {
		go run() // the store is closed: Close does not wait for it
	}
}

// end is for a transaction that the section has not carried out: err is the outcome of its members.
func (t *together) end(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sealed, t.ended, t.err = true, true, err
	for _, m := range t.members {
		m.err = err
	}
	if t.work != nil {
		t.work.abort()
	}
	close(t.done)
}

// rollBack ends the transaction without an effect.
func (t *together) rollBack(why error) {
	t.work.abort()
	t.fail(fmt.Errorf("%w: %w", record.ErrRolledBack, why))
}

// fail gives all members an error.
func (t *together) fail(err error) {
	t.err = err
	for _, m := range t.members {
		m.err = err
	}
}

// commit stores the answers of all members, and commits.
func (t *together) commit() {
	defer t.work.close()
	var asks []*member
	deadline := time.Now().Add(aloneWait)
	for _, m := range t.members {
		if m.ask == nil {
			continue // its item was undone, and its claim is given up
		}
		asks = append(asks, m)
		if m.ask.Deadline.Before(deadline) {
			deadline = m.ask.Deadline
		}
	}
	deadline = deadline.Add(-settleWait)
	ctx, cancel := context.WithDeadline(t.work.life, deadline)
	waits, err := t.storeAll(ctx, asks)
	cancel()
	if err != nil {
		t.work.abort()
		switch {
		case errors.Is(err, sql.ErrTxDone) || errors.Is(err, record.ErrEnded):
			t.fail(record.ErrEnded)
		case pgpool.State(err) == "25P02": // in_failed_sql_transaction
			t.fail(record.ErrAborted)
		default:
			t.fail(fmt.Errorf("%w: %w", record.ErrRolledBack, explain(err)))
		}
		for _, m := range asks {
			switch {
			case m.reply.Stored():
				m.reply = record.CommitReply{}
			case m.reply.State != 0: // another attempt has its record
				m.err = t.confirmed(m)
			}
		}
		return
	}
	timer := time.AfterFunc(time.Until(deadline), t.work.cancel)
	err = t.work.tx.Commit()
	if !timer.Stop() && err == nil {
		err = context.DeadlineExceeded // as ended says
	}
	if err != nil && executed(err) {
		t.work.close() // one connection at a time
		committed, asking := false, gather.ErrUnknown
		if len(asks) > 0 { // the transaction has all rows, or none
			committed, asking = t.store.settle(context.Background(), *asks[0].ask)
		}
		switch {
		case asking != nil:
			t.fail(fmt.Errorf("%w: commit: %w", errors.Join(gather.ErrUnknown, asking), err))
			return
		case committed:
			err = nil
		}
	}
	if err != nil {
		t.fail(fmt.Errorf("%w: %w", record.ErrRolledBack, err))
		return
	}
	for i, m := range asks {
		t.store.completed(m.ask.ID, waits[i])
	}
}

// confirmed returns when the standbys have the answer of another attempt, which is replayed.
func (t *together) confirmed(m *member) error {
	_, err := t.store.try(context.Background(), m.ask.Deadline, func(ctx context.Context, q querier) error {
		_, err := t.store.confirm(ctx, q, m.ask.ID)
		return err
	})
	if err != nil {
		return fmt.Errorf("%w: %w", record.ErrRolledBack, err)
	}
	return nil
}

// storeAll stores the answers of members, and reports for which of them a duplicate waits. An error says that
// the transaction must be rolled back.
func (t *together) storeAll(ctx context.Context, asks []*member) (waits []bool, err error) {
	waits = make([]bool, len(asks))
	if len(asks) == 0 {
		return waits, own(ctx, t.work.tx, t.token)
	}
	var ids, tokens, states, responses, retentions, stones array
	var many []int
	for i, m := range asks {
		if m.ask.Interim {
			continue
		}
		state := "d"
		if m.ask.Response == nil {
			state = "x"
		}
		ids.add(m.ask.ID)
		tokens.add(m.ask.Token)
		states.add(state)
		responses.add(hex.EncodeToString(m.ask.Response))
		retentions.add(strconv.FormatInt(microseconds(m.ask.Retention), 10))
		stones.add(strconv.FormatInt(microseconds(m.ask.Tombstone), 10))
		many = append(many, i)
	}
	if len(many) > 0 {
		rows, err := t.work.tx.QueryContext(ctx, t.store.text.Load().storeAll,
			ids.text(), tokens.text(), states.text(), responses.text(), retentions.text(), stones.text(), t.token)
		if err != nil {
			return nil, err
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			var number int
			var awaited bool
			if err := rows.Scan(&number, &awaited); err != nil {
				return nil, err
			}
			i := many[number-1]
			asks[i].reply.State, waits[i] = record.StateGranted, awaited
		}
		if err := rows.Err(); err != nil {
			return nil, err
		}
	}
	checked := false
	for i, m := range asks {
		if m.reply.Stored() {
			continue
		}
		// An interim answer, a claim that is another attempt's by now, or the handler has ended the transaction.
		if !checked {
			if err := own(ctx, t.work.tx, t.token); err != nil {
				return nil, err
			}
			checked = true
		}
		if _, err := t.work.tx.ExecContext(ctx, "SELECT set_config('"+attempt+"', $1, true)", m.ask.Token); err != nil {
			return nil, err
		}
		to, err := t.store.store(ctx, t.work.tx, *m.ask, false)
		if m.reply, waits[i] = to.CommitReply, to.awaited; err != nil {
			return nil, err
		}
		if !m.reply.Stored() {
			return nil, errOther
		}
	}
	return waits, nil
}
