package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
)

// errChanging says that a row changes faster than it can be read.
var errChanging = errors.New("the record changes all the time")

// rereads bounds the repetitions of a statement because the row was changed between its
// snapshot and its update.
const rereads = 20

// claiming is a claim under way; its caller may leave before its end.
type claiming struct {
	reply record.ClaimReply
	err   error
}

// Claim implements [record.Store].
func (s *Store) Claim(ctx context.Context, ask record.ClaimRequest) (record.ClaimReply, error) {
	done := make(chan claiming) // without room: either the caller takes it, or Late does
	left := make(chan struct{})
	gone := ctx.Err() != nil // then nothing is sent
	begun := s.work.Go(func() {
		c := claiming{err: driver.ErrNotReady}
		if !gone {
			c.reply, c.err = s.claim(ctx, ask)
			if c.err == nil && c.reply.State == record.StateCompleted && c.reply.Response == "" {
				c.err = record.ErrDamaged
			}
		}
		select {
		case done <- c:
		case <-left:
			ask.Late(c.reply, c.err)
		}
	})
	switch {
	case !begun:
		return record.ClaimReply{}, fmt.Errorf("%w: %w", driver.ErrUnavailable, errors.New("the store is closed"))
	case gone:
		close(left)
		return record.ClaimReply{}, pending(ctx)
	}
	timer := time.NewTimer(time.Until(ask.Deadline))
	defer timer.Stop()
	select {
	case c := <-done:
		return c.reply, c.err
	case <-ctx.Done():
	case <-timer.C:
	}
	close(left)
	return record.ClaimReply{}, pending(ctx)
}

// errLate says why the store is unavailable. It is the last that an error wraps, since logs
// have the root cause (observe.RootCause).
var errLate = errors.New("no answer in time")

// pending is the error for a caller that leaves before the outcome is known.
func pending(ctx context.Context) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", driver.ErrPending, context.Cause(ctx))
	}
	return fmt.Errorf("%w: %w", driver.ErrPending, errLate)
}

// standbys are the synchronous standbys of a server.
type standbys struct {
	standby     bool   // there are some
	synchronous string // the setting
}

// row is what a claim finds.
type row struct {
	granted             sql.NullInt64
	token, state        sql.NullString
	same, marked, waits sql.NullBool
	generation, left    sql.NullInt64
	expired, remembered sql.NullBool
	response            []byte
	ticket              bool           // it is the request's
	heldBy              sql.NullString // the ticket
	steps               []byte
	standbys
}

// claim makes a claim, and tries again as long as there is time.
func (s *Store) claim(ctx context.Context, ask record.ClaimRequest) (record.ClaimReply, error) {
	if ask.Look || ask.Ticket != "" {
		return s.take(ctx, ask)
	}
	rep := record.ClaimReply{Sent: time.Now()}
	ambiguous, err := s.try(ctx, ask.Deadline, func(ctx context.Context, q querier) error {
		var flush string
		err := q.QueryRowContext(ctx, s.text.Load().begin, ask.ID, ask.Token, ask.Fingerprint[:],
			microseconds(ask.Lease), microseconds(ask.Retention), ask.Strict, ask.Transactional, s.rowWait()).Scan(&flush)
		if !errors.Is(err, sql.ErrNoRows) {
			rep.State, rep.Generation = record.StateGranted, 1
			return err
		}
		for range rereads {
			var r row
			err := q.QueryRowContext(ctx, s.text.Load().claim, ask.ID, ask.Token, ask.Fingerprint[:],
				microseconds(ask.Lease), microseconds(ask.Retention), ask.Strict, ask.Tombstone, ask.Transactional, s.rowWait(),
			).Scan(&r.granted, &r.token, &r.state, &r.same, &r.generation, &r.marked, &r.waits, &r.left, &r.expired, &r.remembered,
				&r.response, &r.steps, &r.standby, &r.synchronous)
			if err != nil {
				return err
			}
			rep.State = r.found(ask)
			rep.Listed = ask.Waits && r.waits.Bool && s.awaited.listens() // by another duplicate, or by a look before
			if rep.State == record.StateInFlight && ask.Waits && !rep.Listed && r.response == nil {
				if err := s.announce(ctx, q, ask.ID, &rep); err != nil {
					return err
				}
			}
			if done, err := s.complete(ctx, q, ask, &r, &rep); done || err != nil {
				return err
			}
		}
		return errChanging
	})
	rep.Ambiguous = ambiguous
	return rep, err
}

// complete completes the reply for a row with the state of the reply. It reports false if the row
// has changed meanwhile, and must be read again.
func (s *Store) complete(ctx context.Context, q querier, ask record.ClaimRequest, r *row, rep *record.ClaimReply) (bool, error) {
	if r.unconfirmed(rep.State, ask) {
		if there, err := s.confirm(ctx, q, ask.ID); err != nil || !there {
			return false, err
		}
	}
	switch rep.State {
	case record.StateGranted: // now, or before to the same token
		rep.Generation, rep.Steps = max(r.granted.Int64, r.generation.Int64), string(r.steps)
	case record.StateInFlight:
		rep.Left, rep.Response = time.Duration(r.left.Int64)*time.Microsecond, string(r.response)
	case record.StateCompleted:
		rep.Response = string(r.response)
	}
	return rep.State != 0, nil
}

// found is the state of a record for a claim; zero if the row was changed between the
// statement's snapshot and its update.
func (r *row) found(ask record.ClaimRequest) record.State {
	switch {
	case r.granted.Valid:
		return record.StateGranted
	case !r.token.Valid:
		return 0
	case r.expired.Bool && ask.Tombstone && r.remembered.Bool:
		return record.StateExpired
	case r.expired.Bool:
		return 0
	case !r.same.Bool:
		return record.StateMismatch
	case r.state.String == "d":
		return record.StateCompleted
	case r.state.String == "x":
		return record.StateUnavailable
	case r.token.String == ask.Token:
		return record.StateGranted
	case r.left.Int64 > 0:
		return record.StateInFlight
	case r.marked.Bool || ask.Strict:
		return record.StateUnknown
	}
	return 0
}

// unconfirmed reports whether a row must be confirmed by the synchronous standbys, because
// the caller acts on it and the statement has only read it: a claim that an earlier try
// made, or a response to replay. A transactional claim need not be.
func (r *row) unconfirmed(state record.State, ask record.ClaimRequest) bool {
	switch state {
	case record.StateGranted:
		return !r.granted.Valid && !ask.Transactional
	case record.StateCompleted, record.StateUnavailable:
		return r.standby
	case record.StateInFlight:
		return r.standby && r.response != nil
	}
	return false
}

// confirm returns when the synchronous standbys have the record as it was read before on
// the same connection or another one. It reports whether the record is there.
//
// PostgreSQL shows a transaction when its wait for the standbys has ended, also where the
// wait was cancelled, by a driver at its time limit or by hand. A transaction that locks a
// row waits for the standbys itself, and they get its end after the ends of all transactions that it
// has seen.
func (s *Store) confirm(ctx context.Context, q querier, id string) (there bool, err error) {
	_, err = s.settled(ctx, q, id)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return true, err
}

// announce asks for an announcement when the claim in flight is done. If it is done
// already, the state is 0 again.
func (s *Store) announce(ctx context.Context, q querier, id string, rep *record.ClaimReply) error {
	if !s.awaited.listens() {
		return nil // the caller looks again by itself
	}
	var noted bool
	err := q.QueryRowContext(ctx, s.text.Load().announce, id, s.rowWait()).Scan(&noted)
	if err != nil {
		return err
	}
	if rep.Listed = noted; !noted {
		rep.State = 0
	}
	return nil
}
