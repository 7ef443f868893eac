package pgstore

import (
	"context"
	"time"

	"github.com/interlock-go/interlock/core/idempotency/record"
)

// take takes a claim with a ticket, or looks at the record.
func (s *Store) take(ctx context.Context, ask record.ClaimRequest) (record.ClaimReply, error) {
	rep := record.ClaimReply{Sent: time.Now()}
	ambiguous, err := s.try(ctx, ask.Deadline, func(ctx context.Context, q querier) error {
		for range rereads {
			r, err := s.readTicket(ctx, q, ask, s.rowWait())
			if err != nil {
				return err
			}
			rep.State = r.foundWith(ask)
			if done, err := s.complete(ctx, q, ask, &r, &rep); done || err != nil {
				return err
			}
		}
		return errChanging
	})
	rep.Ambiguous = ambiguous && !ask.Look
	return rep, err
}

// readTicket runs the statement of take, and reads the row that it finds.
func (s *Store) readTicket(ctx context.Context, q querier, ask record.ClaimRequest, wait string) (r row, err error) {
	err = q.QueryRowContext(ctx, s.text.Load().take, ask.ID, ask.Token, ask.Fingerprint[:],
		microseconds(ask.Lease), microseconds(ask.Retention), ask.Strict, ask.Ticket, ask.Look, wait,
	).Scan(&r.granted, &r.token, &r.state, &r.same, &r.generation, &r.marked, &r.left, &r.expired, &r.response, &r.standby, &r.ticket, &r.steps)
	return r, err
}

// foundWith is the state of a record for a claim with a ticket, or for a look; zero if the row
// was changed between the statement's snapshot and its update.
func (r *row) foundWith(ask record.ClaimRequest) record.State {
	switch {
	case r.granted.Valid:
		return record.StateGranted
	case !r.token.Valid, r.expired.Bool:
		return record.StateExpired
	case !ask.Look && !r.same.Bool:
		return record.StateMismatch
	case r.state.String == "d":
		return record.StateCompleted
	case r.state.String == "x":
		return record.StateUnavailable
	case !ask.Look && !r.ticket && r.token.String == ask.Ticket && r.left.Int64 > 0: // about to be handed over, perhaps
		return record.StateInFlight
	case !ask.Look && !r.ticket:
		return record.StateExpired
	case !ask.Look && r.token.String == ask.Token:
		return record.StateGranted
	case r.left.Int64 > 0:
		return record.StateInFlight
	case r.marked.Bool || ask.Strict:
		return record.StateUnknown
	case ask.Look:
		return record.StateGranted
	}
	return 0
}

// settled reads a row when the transaction that has changed it has ended.
func (s *Store) settled(ctx context.Context, q querier, id string) (r row, err error) {
	err = q.QueryRowContext(ctx, s.text.Load().settle, id, s.rowWait()).Scan(&r.token, &r.state, &r.heldBy, &r.response, &r.steps)
	return r, err
}
