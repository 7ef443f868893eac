//go:build long

package transactions

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// hearing is a listener that says that it hears, and closes the channel.
type hearing chan struct{}

func (h hearing) Listen(ctx context.Context, _ string, _ func(string), state func(bool)) error {
	state(true)
	close(h)
	<-ctx.Done()
	return ctx.Err()
}

// TestAStatementThatWasGivenUpDoesNotWaitOn has a row locked by another transaction, and a
// server that does not hear when a client gives a statement up. The statement must not be
// executed long after, when the row is free.
func TestAStatementThatWasGivenUpDoesNotWaitOn(t *testing.T) {
	dsn := pgtest.DSN(t)
	config, err := pgx.ParseConfig(dsn + " application_name=waiting")
	if err != nil {
		t.Fatal(err)
	}
	var alone atomic.Bool // no new connection is made, so none to cancel a statement
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if alone.Load() {
			return nil, errors.New("no route")
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	db := stdlib.OpenDB(*config)
	t.Cleanup(func() { _ = db.Close() })
	plain := pool(t, dsn, &commits{})
	hears := make(hearing)
	s := on(t, db, pgstore.Timeout(400*time.Millisecond), pgstore.SweepEvery(-1), pgstore.Listen(hears))
	s.Await("any", time.Now(), func() {})()
	<-hears
	claimBy := func(id, token string, lease, within time.Duration) error {
		late := make(chan error, 1)
		_, err := s.Claim(t.Context(), record.ClaimRequest{
			ID: id, Token: token, Lease: lease, Retention: time.Hour, Waits: true,
			Deadline: time.Now().Add(within), Late: func(_ record.ClaimReply, err error) { late <- err },
		})
		if errors.Is(err, driver.ErrPending) {
			err = <-late
		}
		return err
	}
	claim := func(id, token string, lease time.Duration) error { return claimBy(id, token, lease, time.Second) }
	deadline := func() time.Time { return time.Now().Add(time.Second) }
	for name, c := range map[string]struct {
		lapsed bool
		lock   string // what the other transaction does; the default locks the row
		do     func(id string) error
	}{
		"a claim of a new key":           {lock: "INSERT INTO interlock_record SELECT 'new', token, fingerprint, generation, state, marked, waits, lease_until, keep_until, stone_until, sweep_hour FROM interlock_record WHERE id = $1::text", do: func(string) error { return claim("new", "second", time.Minute) }},
		"a claim of one in flight":       {do: func(id string) error { return claim(id, "second", time.Minute) }},
		"a claim of one that has lapsed": {lapsed: true, do: func(id string) error { return claim(id, "second", time.Minute) }},
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
			if err := claimBy(name, "first", time.Minute, time.Minute); err != nil {
				t.Fatal(err)
			}
			if c.lapsed {
				if _, err := plain.ExecContext(t.Context(), "UPDATE interlock_record SET lease_until = clock_timestamp() WHERE id = $1::text", name); err != nil {
					t.Fatal(err)
				}
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
			if _, err := tx.ExecContext(t.Context(), lock, name); err != nil {
				t.Fatal(err)
			}
			alone.Store(true)
			defer alone.Store(false)
			if err := c.do(name); !errors.Is(err, driver.ErrUnavailable) {
				t.Errorf("while the row is locked: %v", err)
			}
			waiting := 1
			for end := time.Now().Add(5 * time.Second); waiting > 0 && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
				if err := tx.QueryRowContext(t.Context(), "SELECT count(*) FROM pg_stat_activity "+
					"WHERE application_name = 'waiting' AND wait_event_type = 'Lock'").Scan(&waiting); err != nil {
					t.Fatal(err)
				}
			}
			if waiting > 0 {
				t.Errorf("%d statements still wait for the row", waiting)
			}
		})
	}
}
