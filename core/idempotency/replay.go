package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/observe"
)

// What stands behind a refusal, for logs.
var (
	errInFlight   = errors.New("interlock: a request with the key is in flight")
	errNoResponse = errors.New("interlock: the response for the key was not stored")
	errMismatch   = errors.New("interlock: the key was used for another request")
	errExpired    = errors.New("interlock: the key was used before its record expired")
	errUnknown    = errors.New("interlock: the outcome of a request with the key is unknown")
)

// replay is the verdict for a request whose handler does not run.
func (e *Engine) replay(ctx context.Context, a *Attempt, reply ClaimReply, begin time.Time) Verdict {
	v, err := e.verdict(a, reply.State, reply.Response, false)
	if v.Refusal != nil {
		return e.refused(ctx, begin, v.Refusal)
	}
	e.report(ctx, observe.Decided{Outcome: DecidedReplayed, Waited: time.Since(begin), Err: err})
	return v
}

// superseded is the verdict for a request whose handler ran, and whose record is
// another attempt's by now: its response, since there is to be one for a key.
func (e *Engine) superseded(a *Attempt, winner CommitReply, d *observe.Decided) Verdict {
	v, err := e.verdict(a, winner.State, winner.Response, true)
	if v.Refusal != nil {
		d.Reason = string(v.Refusal.Reason)
	} else {
		d.Outcome = DecidedReplayed
	}
	d.Err = err
	return v
}

// verdict turns the state of a record into what its duplicates get. ran says that the
// handler ran.
func (e *Engine) verdict(a *Attempt, state State, response string, ran bool) (Verdict, error) {
	refusal := &core.Refusal{Ran: ran, Rule: e.config.name}
	switch state {
	case StateCompleted:
		r, err := e.config.open(a.protocol, response)
		if err == nil {
			return Verdict{Replay: r}, nil
		}
		refusal.Reason, refusal.Err = ReasonNoRecord, err
	case StateInFlight:
		refusal.Reason, refusal.Err = ReasonInFlight, errInFlight
	case StateUnavailable:
		refusal.Reason, refusal.Err = ReasonResponseUnavailable, errNoResponse
	case StateMismatch:
		refusal.Reason, refusal.Err = ReasonKeyReused, errMismatch
		if ran { // the key was given up and used anew: our answer is lost, not wrong
			refusal.Reason = ReasonOutcomeUnknown
		}
	case StateExpired:
		refusal.Reason, refusal.Err = ReasonKeyExpired, errExpired
	case StateUnknown:
		refusal.Reason, refusal.Err = ReasonOutcomeUnknown, errUnknown
	default:
		refusal.Reason, refusal.Err = ReasonNoRecord, fmt.Errorf("%w: state %d", ErrDamaged, state)
	}
	return Verdict{Refusal: refusal}, refusal.Err
}
