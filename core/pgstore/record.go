package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/internal/pgpool"
)

// Extend implements [record.Store]. It renews all leases in one statement.
func (s *Store) Extend(ctx context.Context, batch []record.Extension, done func(i int, err error)) {
	if len(batch) == 0 {
		return
	}
	outcomes, err := inTime(ctx, s, func() (outcomes map[int]string, err error) {
		// Above READ COMMITTED, which may be the default of the role, renewals fail when other requests run.
		for range rereads {
			if outcomes, err = s.extend(ctx, batch); !strings.HasPrefix(pgpool.State(err), "40") {
				break
			}
		}
		return outcomes, err
	})
	if n := len(batch); n > 1 && pgpool.MayBeOnes(err) { // each half for itself, until the row at fault is known
		s.Extend(ctx, batch[:n/2], done)
		s.Extend(ctx, batch[n/2:], func(i int, err error) { done(n/2+i, err) })
		return
	}
	for i := range batch {
		switch outcome := outcomes[i+1]; {
		case err != nil:
			done(i, fmt.Errorf("%w: %w", driver.ErrUnavailable, explain(err)))
		case outcome == "o", outcome == "d":
			done(i, nil)
		case outcome == "n":
			done(i, driver.ErrNotOwner)
		default: // its row is locked: it is being committed, or taken over
			done(i, fmt.Errorf("%w: %w", driver.ErrUnavailable, errors.New("the record is being changed")))
		}
	}
}

// extend returns the outcome of each renewal by its number, which counts from 1.
func (s *Store) extend(ctx context.Context, batch []record.Extension) (map[int]string, error) {
	// Arrays go as texts, since drivers differ in how they take slices.
	var ids, tokens, leases, retentions array
	for _, e := range batch {
		ids.add(e.ID)
		tokens.add(e.Token)
		leases.add(strconv.FormatInt(microseconds(e.Lease), 10))
		retentions.add(strconv.FormatInt(microseconds(e.Retention), 10))
	}
	outcomes := make(map[int]string, len(batch))
	err := s.on(ctx, s.records, func(conn *sql.Conn) error {
		rows, err := conn.QueryContext(ctx, s.text.Load().extend, ids.text(), tokens.text(), leases.text(), retentions.text())
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			var number int
			var outcome string
			if err := rows.Scan(&number, &outcome); err != nil {
				return err
			}
			outcomes[number] = outcome
		}
		if err := rows.Err(); err != nil {
			return err
		}
		return ended(ctx)
	})
	return outcomes, err
}

// array is an array of PostgreSQL as a text.
type array struct{ strings.Builder }

var quoted = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

func (a *array) add(element string) {
	sep := byte(',')
	if a.Len() == 0 {
		sep = '{'
	}
	a.WriteByte(sep)
	a.WriteString(`"` + quoted.Replace(element) + `"`)
}

func (a *array) text() string { return a.String() + "}" }

// Mark implements [record.Store].
func (s *Store) Mark(ctx context.Context, ask record.MarkRequest) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", driver.ErrUnavailable, context.Cause(ctx))
	}
	ctx, cancel := until(ctx, ask.Deadline)
	defer cancel()
	_, err := inTime(ctx, s, func() (none, error) { return none{}, s.mark(ctx, ask) })
	return err
}

func (s *Store) mark(ctx context.Context, ask record.MarkRequest) error {
	var marked, done bool
	_, err := s.try(ctx, ask.Deadline, func(ctx context.Context, q querier) error {
		return q.QueryRowContext(ctx, s.text.Load().mark, ask.ID, ask.Token, microseconds(ask.Lease), microseconds(ask.Retention), s.rowWait(), ask.HandOver).
			Scan(&marked, &done)
	})
	if err == nil && !marked && !done {
		return driver.ErrNotOwner
	}
	return err
}

// Commit implements [record.Store].
func (s *Store) Commit(ctx context.Context, ask record.CommitRequest) (record.CommitReply, error) {
	if ask.Release != nil {
		defer ask.Release(context.WithoutCancel(ctx)) // when the response is stored
	}
	ctx, cancel := until(ctx, ask.Deadline)
	defer cancel()
	return inTime(ctx, s, func() (record.CommitReply, error) { return s.commit(ctx, ask) })
}

func (s *Store) commit(ctx context.Context, ask record.CommitRequest) (record.CommitReply, error) {
	var to stored
	_, err := s.try(ctx, ask.Deadline, func(ctx context.Context, q querier) (err error) {
		if to, err = s.store(ctx, q, ask, true); to.read && err == nil {
			_, err = s.confirm(ctx, q, ask.ID)
		}
		return err
	})
	if err == nil && to.State == record.StateGranted {
		s.completed(ask.ID, to.awaited)
	}
	return to.CommitReply, err
}

// completed wakes those who wait for a record: here, and in other processes if a duplicate
// has asked for that.
func (s *Store) completed(id string, awaited bool) {
	s.awaited.wake(id)
	if awaited {
		s.notify(announcement + id)
	}
}

// stored is the outcome of storing a response.
type stored struct {
	record.CommitReply
	read    bool // it was there already, by an earlier try or by another attempt
	awaited bool // a duplicate has asked for an announcement
}

// store stores a response. anew says that a record that is gone is written anew. If it is
// not, q is the transaction of a handler: a record that is gone is errGone, and a
// transaction that the handler has ended is [record.ErrEnded].
func (s *Store) store(ctx context.Context, q querier, ask record.CommitRequest, anew bool) (to stored, err error) {
	state := "d"
	if ask.Response == nil {
		state = "x"
	}
	wait := s.rowWait()
	if !anew {
		wait = "" // the transaction has its own
	}
	if ask.Interim {
		return s.storeInterim(ctx, q, ask, wait)
	}
	err = q.QueryRowContext(ctx, s.text.Load().store, ask.ID, ask.Token, state, ask.Response,
		microseconds(ask.Retention), microseconds(ask.Tombstone), wait).Scan(&to.awaited)
	if !errors.Is(err, sql.ErrNoRows) {
		to.State = record.StateGranted
		return to, err
	}
	if !anew {
		if err := own(ctx, q, ask.Token); err != nil {
			return to, err
		}
	}
	for range rereads {
		var done, same sql.NullBool
		var token, found sql.NullString
		var response []byte
		err := q.QueryRowContext(ctx, s.text.Load().commit, ask.ID, ask.Token, ask.Fingerprint[:], ask.Generation, state, ask.Response,
			microseconds(ask.Retention), microseconds(ask.Tombstone), anew, wait,
		).Scan(&done, &to.awaited, &token, &found, &same, &response)
		switch {
		case err != nil:
			return to, err
		case done.Bool, token.String == ask.Token && found.String != "c": // the latter by an earlier try
			to.State, to.read = record.StateGranted, !done.Bool
			return to, nil
		case !token.Valid && !anew:
			return to, errGone
		case !token.Valid, token.String == ask.Token: // it has just been changed
			continue
		case !same.Bool:
			to.State = record.StateMismatch
		case found.String == "d":
			to.State, to.Response = record.StateCompleted, string(response)
		case found.String == "x":
			to.State = record.StateUnavailable
		default:
			to.State = record.StateInFlight
		}
		to.read = to.State == record.StateCompleted || to.State == record.StateUnavailable
		return to, nil
	}
	return to, errChanging
}

// storeInterim stores an interim response. If wait is empty, q is the transaction of a handler.
func (s *Store) storeInterim(ctx context.Context, q querier, ask record.CommitRequest, wait string) (to stored, err error) {
	for range rereads {
		err = q.QueryRowContext(ctx, s.text.Load().interim, ask.ID, ask.Token, ask.Response, microseconds(ask.Retention), wait,
			microseconds(ask.HandOver)).Scan(&to.awaited)
		if !errors.Is(err, sql.ErrNoRows) {
			to.State = record.StateGranted
			return to, err
		}
		if wait == "" {
			if err := own(ctx, q, ask.Token); err != nil {
				return to, err
			}
		}
		look := record.ClaimRequest{ID: ask.ID, Fingerprint: ask.Fingerprint, Ticket: ask.Token, Look: true}
		r, err := s.readTicket(ctx, q, look, wait)
		switch {
		case err != nil:
			return to, err
		case (!r.token.Valid || r.expired.Bool) && wait == "":
			return to, errGone
		case !r.token.Valid || r.expired.Bool:
			to.State = record.StateUnknown
		case r.ticket && r.state.String == "c": // it has just been changed
			continue
		case r.ticket: // the final response counts
			to.State, to.read = record.StateGranted, true
		case r.token.String == ask.Token || r.token.String == "-":
			to.State = record.StateUnknown
		case !r.same.Bool:
			to.State = record.StateMismatch
		case r.state.String == "d":
			to.State, to.Response, to.read = record.StateCompleted, string(r.response), true
		case r.state.String == "x":
			to.State, to.read = record.StateUnavailable, true
		default:
			to.State = record.StateInFlight
		}
		return to, nil
	}
	return to, errChanging
}

// Abandon implements [record.Store].
func (s *Store) Abandon(ctx context.Context, ask record.AbandonRequest) error {
	if ask.Release != nil {
		defer ask.Release(context.WithoutCancel(ctx))
	}
	ctx, cancel := until(ctx, ask.Deadline)
	defer cancel()
	_, err := inTime(ctx, s, func() (none, error) { return none{}, s.abandon(ctx, ask) })
	return err
}

func (s *Store) abandon(ctx context.Context, ask record.AbandonRequest) error {
	var gone int64
	var awaited bool
	ambiguous, err := s.try(ctx, ask.Deadline, func(ctx context.Context, q querier) error {
		return q.QueryRowContext(ctx, s.text.Load().abandon, ask.ID, ask.Token, s.rowWait()).Scan(&gone, &awaited)
	})
	switch {
	case err != nil:
		return err
	case gone == 0 && !ambiguous:
		return driver.ErrNotOwner
	}
	s.completed(ask.ID, awaited || gone == 0) // an earlier try may have given it up
	return nil
}

// Resolve implements [record.Store].
func (s *Store) Resolve(ctx context.Context, ask record.ResolveRequest) error {
	ctx, cancel := until(ctx, ask.Deadline)
	defer cancel()
	_, err := inTime(ctx, s, func() (none, error) { return none{}, s.resolve(ctx, ask) })
	return err
}

func (s *Store) resolve(ctx context.Context, ask record.ResolveRequest) error {
	var resolved, again bool
	ambiguous, err := s.try(ctx, ask.Deadline, func(ctx context.Context, q querier) error {
		err := q.QueryRowContext(ctx, s.text.Load().resolve, ask.ID, ask.Token, ask.Response, ask.Strict,
			microseconds(ask.Retention), microseconds(ask.Tombstone), s.rowWait(), ask.Step, ask.Log).Scan(&resolved)
		if again && resolved && err == nil { // perhaps by the try before
			_, err = s.confirm(ctx, q, ask.ID)
		}
		again = true
		return err
	})
	if err == nil && !resolved && (!ambiguous || ask.Response != nil) {
		return record.ErrNotUnknown
	}
	return err
}

// Forget implements [record.Store].
func (s *Store) Forget(ctx context.Context, id string) error {
	_, err := inTime(ctx, s, func() (none, error) {
		return none{}, s.on(ctx, s.records, func(conn *sql.Conn) error {
			_, err := conn.ExecContext(ctx, s.text.Load().forget, id, s.rowWait())
			return err
		})
	})
	if err != nil {
		return fmt.Errorf("%w: %w", driver.ErrUnavailable, explain(err))
	}
	return nil
}

const (
	// sweepBatch is how many of them are deleted in one statement, and sweepPause the
	// pause after a full one: up to 1,000 rows a second.
	sweepBatch = 500
	sweepPause = 500 * time.Millisecond
)

// deleteExpired deletes expired rows until the store is closed. A failure is logged, at
// once and then once a minute, and the work tried again at the next look.
func (s *Store) deleteExpired() {
	for pause := s.sweep; s.work.Sleep(pause, nil); {
		pause = s.sweep
		deleted, err := s.deleteBatch()
		if err != nil {
			s.work.Failed("records whose time has ended were not deleted", explain(err))
		} else if deleted == sweepBatch {
			pause = sweepPause
		}
	}
}

// deleteBatch deletes expired rows, up to [sweepBatch].
func (s *Store) deleteBatch() (deleted int64, err error) {
	ctx, cancel := context.WithTimeout(s.work.Life(), 10*time.Second)
	defer cancel()
	err = s.on(ctx, s.records, func(conn *sql.Conn) error {
		result, err := conn.ExecContext(ctx, s.text.Load().sweep, sweepBatch)
		if err == nil {
			deleted, err = result.RowsAffected()
		}
		return err
	})
	return deleted, err
}
