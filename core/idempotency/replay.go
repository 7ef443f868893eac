package idempotency

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/reason"
)

// The errors of refusals because of the record of a key ([core.Refusal.Err]). The error
// of a function (package once) matches them.
var (
	// ErrInFlight says that the work of the key is being carried out at this moment,
	// here or elsewhere. It passes by itself.
	ErrInFlight = errors.New("interlock: a request with the key is in flight")
	// ErrResponseUnavailable says that the work of the key was carried out, and that
	// its response was not stored, or cannot be read.
	ErrResponseUnavailable = errors.New("interlock: the response for the key was not stored")
	// ErrKeyReused says that the key was used for other work: its input differs.
	ErrKeyReused = errors.New("interlock: the key was used for another request")
	// ErrKeyExpired says that the key was used, and that its record is no longer kept
	// ([Tombstone]).
	ErrKeyExpired = errors.New("interlock: the key was used before its record expired")
	// ErrOutcomeUnknown says that the work of the key was begun, and that it is not
	// known how it ended. It is not begun again until an operator calls
	// [Engine.Resolve] or [Engine.Forget], or its record has expired.
	ErrOutcomeUnknown = errors.New("interlock: the outcome of a request with the key is unknown")
)

// errGivenUp is the cause of a refusal: the record of the request was given up while
// its handler ran.
var errGivenUp = fmt.Errorf("%w: %w", ErrOutcomeUnknown, errors.New("the key was given up, and used for another request"))

// replay is the verdict for a request without a run of its handler.
func (e *Engine) replay(ctx context.Context, a *attempt, reply record.ClaimReply, begin time.Time) endpoint.Verdict {
	v, err := e.verdict(a, reply.State, reply.Response, false)
	d := observe.Decided{Outcome: observe.DecidedReplayed, Record: a.id, Waited: time.Since(begin), Err: err}
	if v.Refusal != nil {
		d.Outcome, d.Reason = observe.DecidedRefused, string(v.Refusal.Reason)
	}
	e.report(ctx, d)
	if d.Reason == string(reason.OutcomeUnknown) {
		e.logUnknown(ctx, a.id, err, true)
	}
	return v
}

// superseded is the verdict for a request that lost its record to another attempt while
// its handler ran: the other's response, since there is to be one for a key.
func (e *Engine) superseded(a *attempt, winner record.CommitReply, d *observe.Decided) endpoint.Verdict {
	v, err := e.verdict(a, winner.State, winner.Response, true)
	if v.Refusal != nil {
		d.Outcome, d.Reason = observe.DecidedUnknown, string(v.Refusal.Reason)
	} else {
		d.Outcome = observe.DecidedReplayed
	}
	d.Err = err
	return v
}

// verdict turns the state of a record into what its duplicates get. ran says that the
// handler ran.
func (e *Engine) verdict(a *attempt, state record.State, response string, ran bool) (endpoint.Verdict, error) {
	refusal := &core.Refusal{Ran: ran, Rule: e.config.name}
	if response != "" && state == record.StateInFlight {
		v, err := e.verdict(a, record.StateCompleted, response, ran)
		if v.Replay != nil {
			v.Replay.Header = a.marksInterim(v.Replay.Header)
		}
		return v, err
	}
	switch state {
	case record.StateCompleted:
		r, err := e.config.open(a.protocol, response)
		switch {
		case err != nil:
			refusal.Reason, refusal.Err = reason.NoRecord, err
		case !a.mayReplay(r):
			refusal.Reason, refusal.Err = reason.NotAcceptable, errNotAcceptable
		default:
			return endpoint.Verdict{Replay: r}, nil
		}
	case record.StateInFlight:
		refusal.Reason, refusal.Err = reason.InFlight, ErrInFlight
	case record.StateUnavailable:
		refusal.Reason, refusal.Err = reason.ResponseUnavailable, ErrResponseUnavailable
	case record.StateMismatch:
		refusal.Reason, refusal.Err = reason.KeyReused, ErrKeyReused
		if ran { // the key was given up and used anew: our answer is lost, not wrong
			refusal.Reason, refusal.Err = reason.OutcomeUnknown, errGivenUp
		}
	case record.StateExpired:
		refusal.Reason, refusal.Err = reason.KeyExpired, ErrKeyExpired
	case record.StateUnknown:
		refusal.Reason, refusal.Err = reason.OutcomeUnknown, ErrOutcomeUnknown
	default:
		refusal.Reason, refusal.Err = reason.NoRecord, damaged("state %d", state)
	}
	return endpoint.Verdict{Refusal: refusal}, refusal.Err
}

// marksInterim adds [InterimHeader] to the header of a replay.
func (a *attempt) marksInterim(header map[string][]string) map[string][]string {
	if header == nil {
		header = map[string][]string{}
	}
	name := InterimHeader
	if a.protocol == endpoint.GRPC {
		name = strings.ToLower(name)
	}
	header[name] = []string{"true"}
	return header
}
