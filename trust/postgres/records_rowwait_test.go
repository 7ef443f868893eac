//go:build long && unix

package postgres_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/pgstore"
)

// claimed is the outcome of a claim.
type claimed struct {
	rep record.ClaimReply
	err error
}

// claim asks for a record, and waits for the outcome also when the time of the caller has
// ended.
func claim(tb testing.TB, s record.Store, ask record.ClaimRequest) (record.ClaimReply, error) {
	tb.Helper()
	if ask.Lease == 0 {
		ask.Lease = measured(tb).Holds()
	}
	if ask.Retention == 0 {
		ask.Retention = 2 * measured(tb).Holds()
	}
	if ask.Deadline.IsZero() {
		ask.Deadline = soon(tb)
	}
	late := make(chan claimed, 1)
	ask.Late = func(rep record.ClaimReply, err error) { late <- claimed{rep, err} }
	rep, err := s.Claim(tb.Context(), ask)
	if errors.Is(err, driver.ErrPending) {
		last := receive(tb, "the claim has an outcome", late)
		rep, err = last.rep, last.err
	}
	return rep, err
}

// hearing is a listener that reports that it listens, and closes the channel.
type hearing chan struct{}

func (h hearing) Listen(ctx context.Context, _ string, _ func(string), state func(bool)) error {
	state(true)
	close(h)
	<-ctx.Done()
	return ctx.Err()
}

// TestAStatementThatWasGivenUpDoesNotWaitOn has a row locked by another transaction, and a
// server that does not notice when a client gives a statement up. The statement must not
// be executed long after, when the row is free.
func TestAStatementThatWasGivenUpDoesNotWaitOn(t *testing.T) {
	plain, dsn := tables(t)
	var alone atomic.Bool // no new connection is made, so none to cancel a statement
	w := &wire{dialing: func() error {
		if alone.Load() {
			return errors.New("no route")
		}
		return nil
	}}
	hears := make(hearing)
	s := newStore(t, w.through(t, dsn+" application_name=waiting"), pgstore.Timeout(400*time.Millisecond), pgstore.Listen(hears))
	s.Await("any", time.Now(), func() {})()
	<-hears
	claimBy := func(id, token string, within time.Duration) error {
		_, err := claim(t, s, record.ClaimRequest{ID: id, Token: token, Waits: true, Deadline: time.Now().Add(within)})
		return err
	}
	second := func(id string) error { return claimBy(id, "second", time.Second) }
	deadline := func() time.Time { return time.Now().Add(time.Second) }
	for name, c := range map[string]struct {
		lapsed bool
		lock   string // the statement of the other transaction; the default locks the row
		do     func(id string) error
	}{
		"a claim of a new key":                {lock: "INSERT INTO interlock_record SELECT 'new', token, fingerprint, generation, state, marked, waits, lease_until, keep_until, stone_until, sweep_hour FROM interlock_record WHERE id = $1::text", do: func(string) error { return second("new") }},
		"a claim of one in flight":            {do: second},
		"a claim of a record that has lapsed": {lapsed: true, do: second},
		"a mark": {do: func(id string) error {
			return s.Mark(t.Context(), record.MarkRequest{ID: id, Token: "first", Lease: time.Minute, Retention: time.Hour, Deadline: deadline()})
		}},
		"a commit": {do: func(id string) error {
			_, err := s.Commit(t.Context(), record.CommitRequest{ID: id, Token: "first", Generation: 1, Response: []byte("a"), Retention: time.Hour, Deadline: deadline()})
			return err
		}},
		"a commit of a record that is gone": {lock: "INSERT INTO interlock_record SELECT 'gone', token, fingerprint, generation, state, marked, waits, lease_until, keep_until, stone_until, sweep_hour FROM interlock_record WHERE id = $1::text", do: func(string) error {
			_, err := s.Commit(t.Context(), record.CommitRequest{ID: "gone", Token: "other", Generation: 1, Response: []byte("a"), Retention: time.Hour, Deadline: deadline()})
			return err
		}},
		"an abandon": {do: func(id string) error {
			return s.Abandon(t.Context(), record.AbandonRequest{ID: id, Token: "first", Deadline: deadline()})
		}},
		"a resolution": {lapsed: true, do: func(id string) error {
			return s.Resolve(t.Context(), record.ResolveRequest{ID: id, Token: "second", Strict: true, Response: []byte("a"), Retention: time.Hour, Deadline: deadline()})
		}},
		"a deletion by an operator": {lapsed: true, do: func(id string) error {
			return s.Resolve(t.Context(), record.ResolveRequest{ID: id, Token: "second", Strict: true, Retention: time.Hour, Deadline: deadline()})
		}},
		"a forget": {do: func(id string) error {
			ctx, cancel := context.WithDeadline(t.Context(), deadline())
			defer cancel()
			return s.Forget(ctx, id)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if err := claimBy(name, "first", measured(t).Patience()); err != nil {
				t.Fatal(err)
			}
			if c.lapsed {
				execute(t, plain, "UPDATE interlock_record SET lease_until = clock_timestamp() WHERE id = $1::text", name)
			}
			tx, err := plain.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback() }()
			lock := c.lock
			if lock == "" {
				lock = "SELECT FROM interlock_record WHERE id = $1::text FOR UPDATE"
			}
			execute(t, tx, lock, name)
			alone.Store(true)
			defer alone.Store(false)
			if err := c.do(name); !errors.Is(err, driver.ErrUnavailable) {
				t.Errorf("while the row is locked: %v", err)
			}
			eventually(t, "no statement waits for the row", func() bool {
				return read[int](t, tx, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'waiting' AND wait_event_type = 'Lock'") == 0
			})
		})
	}
}
