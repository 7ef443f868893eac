package memstore

import (
	"time"

	"github.com/interlock-go/interlock/core/idempotency/record"
)

// ticket is a ticket of a claim. The zero value is no ticket.
type ticket struct {
	token string    // of the attempt that handed the claim over
	ends  time.Time // its own end: until then no duplicate takes the claim
}

// look returns the state of a record for a request that changes nothing.
func (e *entry) look(req record.ClaimRequest, now time.Time) (record.ClaimReply, error) {
	switch {
	case e == nil:
		return record.ClaimReply{State: record.StateExpired}, nil
	case e.damaged:
		return record.ClaimReply{}, record.ErrDamaged
	case e.state != record.StateInFlight:
		return record.ClaimReply{State: e.state, Response: e.response}, nil
	case now.Before(e.closed(req.Strict)):
		return record.ClaimReply{State: record.StateInFlight, Left: e.closed(req.Strict).Sub(now), Response: e.response}, nil
	case e.unsure() || req.Strict:
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
	case e.ticket.token != req.Ticket && e.token == req.Ticket && now.Before(e.ends): // about to be handed over, perhaps
		return record.ClaimReply{State: record.StateInFlight, Left: e.ends.Sub(now)}, nil
	case e.ticket.token != req.Ticket:
		return record.ClaimReply{State: record.StateExpired}, nil
	case e.token == req.Token: // by an earlier try
		return e.granted(), nil
	case e.token == e.ticket.token: // never taken
	case e.token == "": // given up
		e.generation++
	case now.Before(e.ends):
		return record.ClaimReply{State: record.StateInFlight, Left: e.ends.Sub(now)}, nil
	case e.unsure() || req.Strict:
		return record.ClaimReply{State: record.StateUnknown}, nil
	default:
		e.generation++
	}
	e.token, e.ends, e.changed = req.Token, now.Add(req.Lease), now
	e.keep(now.Add(req.Retention))
	return e.granted(), nil
}

// handOver makes the token of a claim, with its lease, a ticket.
func (e *entry) handOver() {
	if e.ticket.token != e.token {
		e.before = e.ticket
	}
	e.ticket = ticket{e.token, e.ends}
}

// promised hands a claim over with its interim response, for a [record.Unit] of a test.
func (e *entry) promised(req record.CommitRequest, now time.Time) {
	if req.HandOver > 0 && e != nil && e.token == req.Token && e.state == record.StateInFlight {
		e.ends = later(e.ends, now.Add(req.HandOver))
		e.handOver()
	}
}

// closed returns until when no duplicate takes the claim: to the end of its lease, and, unless it must
// not be taken over at all, to the end of its ticket.
func (e *entry) closed(strict bool) time.Time {
	if e.unsure() || strict {
		return e.ends
	}
	return later(e.ends, e.ticket.ends)
}

// takenOver gives a claim to another token.
func (e *entry) takenOver(token string, now time.Time, lease, retention time.Duration) {
	e.token, e.generation, e.ends, e.changed = token, e.generation+1, now.Add(lease), now
	e.ticket, e.before, e.response = ticket{}, ticket{}, ""
	e.keep(now.Add(retention))
}
