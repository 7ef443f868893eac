package redisstore

import (
	"context"
	_ "embed"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/internal/rediswire"
)

//go:embed lua/idem_claim.lua
var claimSource string

//go:embed lua/idem_renew.lua
var extendSource string

//go:embed lua/idem_mark.lua
var markSource string

//go:embed lua/idem_commit.lua
var commitSource string

//go:embed lua/idem_abandon.lua
var abandonSource string

//go:embed lua/idem_resolve.lua
var resolveSource string

var (
	claimScript   = rediswire.NewScript(claimSource)
	extendScript  = rediswire.NewScript(extendSource)
	markScript    = rediswire.NewScript(markSource)
	commitScript  = rediswire.NewScript(commitSource)
	abandonScript = rediswire.NewScript(abandonSource)
	resolveScript = rediswire.NewScript(resolveSource) // rare: its source is sent along
)

var _ idempotency.Store = (*Store)(nil)

// The replies of these scripts are words, none of which another script says:
// should replies ever get out of step, none can be taken for another's.

// claim is a claim on its way, with room for its arguments.
type claim struct {
	rediswire.Request
	ask   idempotency.ClaimRequest
	names [2]string // record, tombstone
	ms    [2]int64  // lease, retention
	room  [13]any
	read  [4]any
}

// Claim implements [idempotency.Store].
func (s *Store) Claim(ctx context.Context, ask idempotency.ClaimRequest) (idempotency.ClaimReply, error) {
	r := &claim{ask: ask}
	record := s.wire.Record(ask.ID)
	r.names[0] = record
	r.ms = [2]int64{rediswire.Milliseconds(ask.Lease), rediswire.Milliseconds(ask.Retention)}
	r.Make(s.wire, claimScript, record, r.room[:]).Keys(&r.names[0])
	if ask.Tombstone {
		r.names[1] = rediswire.TombstoneOf(record)
		r.Keys(&r.names[1])
	}
	r.read = [4]any{"hmget", &r.names[0], "t", "r"}
	r.Args(&r.ask.Token, r.ask.Fingerprint1[:], &r.ms[0], &r.ms[1], rediswire.Flag(ask.Strict), rediswire.Flag(ask.Waits),
		r.ask.Fingerprint[:]).Behind(r.read[:])
	r.Deadline, r.Write, r.Asks = ask.Deadline, true, true
	r.Late = func() { r.ask.Late(r.reply()) }
	if !r.Do(ctx, ask.Deadline) {
		return idempotency.ClaimReply{}, rediswire.Pending(ctx)
	}
	return r.reply()
}

// reply makes the caller's reply of what the script returned.
func (r *claim) reply() (idempotency.ClaimReply, error) {
	rep := idempotency.ClaimReply{Sent: r.Sent, Ambiguous: r.Ambiguous}
	if r.Err != nil {
		return rep, wrapRecord(r.Err)
	}
	if _, completed := r.Completed(); completed { // and it fits
		if rep.State, rep.Response = idempotency.StateCompleted, r.Second(); rep.Response == "" {
			return rep, idempotency.ErrDamaged
		}
		return rep, nil
	}
	words := r.Words("claim")
	if words == nil {
		rep.Ambiguous = true // what that server has done is unknown
		return rep, wrapRecord(rediswire.ErrReply)
	}
	switch state, _ := words[0].(string); {
	case state == "granted" && len(words) == 2:
		generation, _ := words[1].(int64)
		if generation < 1 {
			rep.Ambiguous = true
			return rep, wrapRecord(rediswire.ErrReply)
		}
		if r.Unacked {
			rep.Ambiguous = true // the caller does not have it, the server says otherwise
			return rep, driver.ErrNotReplicated
		}
		rep.State, rep.Generation = idempotency.StateGranted, generation
	case state == "in-flight" && len(words) == 3:
		rep.State = idempotency.StateInFlight
		left, _ := words[1].(int64)
		listed, _ := words[2].(int64)
		rep.Left, rep.Listed = time.Duration(left)*time.Millisecond, listed == 1
	case state == "damaged":
		return rep, idempotency.ErrDamaged
	default:
		if rep.State, rep.Response = stateOf(words); rep.State == 0 {
			rep.Ambiguous = true
			return rep, wrapRecord(rediswire.ErrReply)
		}
	}
	return rep, nil
}

// stateOf reads the state of a record that is another's.
func stateOf(words []any) (state idempotency.State, response string) {
	switch name, _ := words[0].(string); {
	case name == "completed" && len(words) == 2:
		response, _ = words[1].(string)
		return idempotency.StateCompleted, response
	case name == "unavailable":
		return idempotency.StateUnavailable, ""
	case name == "mismatch":
		return idempotency.StateMismatch, ""
	case name == "unknown":
		return idempotency.StateUnknown, ""
	case name == "expired":
		return idempotency.StateExpired, ""
	case name == "in-flight":
		return idempotency.StateInFlight, ""
	}
	return 0, ""
}
