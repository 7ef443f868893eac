package memstore

import (
	"time"

	"github.com/interlock-go/interlock/core/idempotency/record"
)

// look returns the state of a record for a request that changes nothing.
func (e *entry) look(req record.ClaimRequest, now time.Time) (record.ClaimReply, error) {
	switch {
	case e == nil:
		return record.ClaimReply{State: record.StateExpired}, nil
	case e.damaged:
		return record.ClaimReply{}, record.ErrDamaged
	case e.state != record.StateInFlight:
		return record.ClaimReply{State: e.state, Response: e.response}, nil
	case now.Before(e.ends):
		return record.ClaimReply{State: record.StateInFlight, Left: e.ends.Sub(now), Response: e.response}, nil
	case e.marked || req.Strict:
		return record.ClaimReply{State: record.StateUnknown}, nil
	}
	return record.ClaimReply{State: record.StateGranted, Generation: e.generation + 1}, nil
}

// take gives a claim that was handed over to the token that has the ticket.
func (e *entry) take(req record.ClaimRequest, now time.Time) (record.ClaimReply, error) {
	switch {
	case e == nil:
		return record.ClaimReply{State: record.StateExpired}, nil
	case e.damaged:
		return record.ClaimReply{}, record.ErrDamaged
	case e.fingerprint != req.Fingerprint:
		return record.ClaimReply{State: record.StateMismatch}, nil
	case e.state != record.StateInFlight:
		return record.ClaimReply{State: e.state, Response: e.response}, nil
	case e.ticket != req.Ticket:
		return record.ClaimReply{State: record.StateExpired}, nil
	case e.token == req.Token: // by an earlier try
		return record.ClaimReply{State: record.StateGranted, Generation: e.generation}, nil
	case e.token == e.ticket: // never taken
	case e.token == "": // given up
		e.generation++
	case now.Before(e.ends):
		return record.ClaimReply{State: record.StateInFlight, Left: e.ends.Sub(now)}, nil
	case e.marked || req.Strict:
		return record.ClaimReply{State: record.StateUnknown}, nil
	default:
		e.generation++
	}
	e.token, e.ends, e.changed = req.Token, now.Add(req.Lease), now
	e.keep(now.Add(req.Retention))
	return record.ClaimReply{State: record.StateGranted, Generation: e.generation}, nil
}
