package pgstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency/record"
)

// member is an attempt in the transaction, as a [record.Unit].
type member struct {
	unrecorded bool // it has no record, and no vote

	mu   sync.Mutex
	t    *together // nil: not in a transaction yet
	left bool      // its caller has left without its result

	// Guarded by the mutex of t.
	undone bool // its item has no effect
	voted  bool
	ask    *record.CommitRequest // nil: it votes for a rollback

	// Set before t.done is closed.
	reply record.CommitReply
	err   error
}

// Commit implements [record.Unit].
func (m *member) Commit(_ context.Context, ask record.CommitRequest) (record.CommitReply, error) {
	t := m.t
	m.mu.Lock()
	left := m.left
	m.mu.Unlock()
	t.mu.Lock()
	if m.voted = true; !left || m.undone {
		m.ask = &ask
	} // else the handler does not know its result: the effect is not to be committed with its answer
	t.decide()
	t.mu.Unlock()
	select {
	case <-t.done:
	case <-time.After(time.Until(ask.Deadline) - settleWait):
		if t.giveUp() {
			return record.CommitReply{}, fmt.Errorf("%w: %w", record.ErrRolledBack, errSlow)
		}
		select {
		case <-t.done:
		case <-time.After(settleWait + driverWait):
			return record.CommitReply{}, fmt.Errorf("%w: %w", core.ErrUnavailable, errLate)
		}
	}
	if left && m.err == nil && m.ask == nil {
		return m.reply, record.ErrAborted
	}
	if left && errors.Is(m.err, record.ErrRolledBack) {
		return m.reply, record.ErrAborted // the answer reports no effect, and there is none
	}
	return m.reply, m.err
}

// Rollback implements [record.Unit].
func (m *member) Rollback(context.Context) error {
	t := m.t
	t.mu.Lock()
	defer t.mu.Unlock()
	m.voted = true
	t.decide()
	return nil
}

// leave notes that the caller got an error of the batch.
func (m *member) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left = true
}

// together returns the transaction of the member; nil if it has none.
func (m *member) together() *together {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.t
}

// undo notes that the item of the member has no effect.
func (m *member) undo() {
	t := m.together()
	t.mu.Lock()
	defer t.mu.Unlock()
	m.undone = true
}
