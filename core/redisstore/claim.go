package redisstore

import (
	"context"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/inflight"
	"github.com/interlock-go/interlock/core/internal/rediswire"
)

var _ record.Store = (*Store)(nil)

// claim is a claim on its way, with room for its arguments.
type claim struct {
	rediswire.Request
	ask   record.ClaimRequest
	names [2]string // record, tombstone
	ms    [2]int64  // lease, retention
	room  [12]any
	read  [4]any
}

// Claim implements [record.Store].
func (s *Store) Claim(ctx context.Context, ask record.ClaimRequest) (record.ClaimReply, error) {
	r := &claim{ask: ask}
	name := s.wire.Record(ask.ID)
	r.names[0] = name
	r.ms = [2]int64{clock.Ceil(ask.Lease, time.Millisecond), clock.Ceil(ask.Retention, time.Millisecond)}
	if ask.Look || ask.Ticket != "" {
		fingerprint := r.ask.Fingerprint[:]
		if ask.Look {
			fingerprint = nil
		}
		r.Make(s.wire, takeScript, name, r.room[:]).Keys(&r.names[0]).
			Args(&r.ask.Token, fingerprint, &r.ms[0], &r.ms[1], rediswire.Flag(ask.Strict), &r.ask.Ticket)
		return r.send(ctx)
	}
	r.Make(s.wire, claimScript, name, r.room[:]).Keys(&r.names[0])
	if ask.Tombstone {
		r.names[1] = rediswire.TombstoneOf(name)
		r.Keys(&r.names[1])
	}
	// Behind appends the last argument of the script, ARGV[7]: the response comes right
	// after the reply, or the script returns it.
	r.read = [4]any{"hmget", &r.names[0], "t", "r"}
	r.Args(&r.ask.Token, r.ask.Fingerprint[:], &r.ms[0], &r.ms[1], rediswire.Flag(ask.Strict), rediswire.Flag(ask.Waits)).
		Behind(r.read[:])
	return r.send(ctx)
}

// send sends the script, and returns the caller's reply.
func (r *claim) send(ctx context.Context) (record.ClaimReply, error) {
	r.Deadline, r.Write, r.Asks = r.ask.Deadline, true, true
	r.Late = func() { r.ask.Late(r.reply()) }
	if !r.Do(ctx, r.ask.Deadline) {
		return record.ClaimReply{}, inflight.Pending(ctx)
	}
	return r.reply()
}

// reply makes the caller's reply from the result of the script.
func (r *claim) reply() (record.ClaimReply, error) {
	rep := record.ClaimReply{Sent: r.Sent, Ambiguous: r.Ambiguous}
	if r.Err != nil {
		return rep, wrapRecord(r.Err)
	}
	if _, completed := r.Completed(); completed { // and it fits
		if rep.State, rep.Response = record.StateCompleted, r.Second(); rep.Response == "" {
			return rep, record.ErrDamaged
		}
		return rep, nil
	}
	words := r.Words("claim")
	if words == nil {
		rep.Ambiguous = true // what that server has done is unknown
		return rep, wrapRecord(rediswire.ErrReply)
	}
	switch state, _ := words[0].(string); {
	case state == "granted" && (len(words) == 2 || len(words) == 3):
		generation, _ := words[1].(int64)
		if generation < 1 {
			rep.Ambiguous = true
			return rep, wrapRecord(rediswire.ErrReply)
		}
		if r.Unacked {
			rep.Ambiguous = true // the caller does not have it, the server says otherwise
			return rep, driver.ErrNotReplicated
		}
		if rep.State, rep.Generation = record.StateGranted, generation; len(words) == 3 {
			rep.Steps, _ = words[2].(string)
		}
	case state == "in-flight" && (len(words) == 3 || len(words) == 4):
		if rep.State = record.StateInFlight; len(words) == 4 {
			rep.Response, _ = words[3].(string)
		}
		left, _ := words[1].(int64)
		listed, _ := words[2].(int64)
		rep.Left, rep.Listed = time.Duration(left)*time.Millisecond, listed == 1
	case state == "damaged":
		return rep, record.ErrDamaged
	default:
		if rep.State, rep.Response = stateOf(words); rep.State == 0 {
			rep.Ambiguous = true
			return rep, wrapRecord(rediswire.ErrReply)
		}
	}
	return rep, nil
}

// stateOf reads the state of a record that is another's.
func stateOf(words []any) (state record.State, response string) {
	switch name, _ := words[0].(string); {
	case name == "completed" && len(words) == 2:
		response, _ = words[1].(string)
		return record.StateCompleted, response
	case name == "unavailable":
		return record.StateUnavailable, ""
	case name == "mismatch":
		return record.StateMismatch, ""
	case name == "unknown":
		return record.StateUnknown, ""
	case name == "expired":
		return record.StateExpired, ""
	case name == "in-flight":
		return record.StateInFlight, ""
	}
	return 0, ""
}
