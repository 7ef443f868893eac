package idempotency

import (
	"context"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/record"
)

// Progress says how far the request with a key is ([Engine.Look]).
type Progress struct {
	// Stage is the stage of the request.
	Stage Stage
	// Answer is the final answer when the request is finished, and the interim answer while it is
	// in progress ([HandOver]). It is nil if there is none, or it is not stored. Do not write
	// to its body.
	Answer *endpoint.Response
}

// Stage is a stage of a request.
type Stage string

// The stages of a request.
const (
	// StageFree: a request with the key is carried out. None was sent, the attempts that there were
	// have failed or died before [MarkEffect], or the record has expired.
	StageFree Stage = "free"
	// StageInProgress: a handler or a job is at work, or a job has yet to bring its ticket.
	StageInProgress Stage = "in progress"
	// StageFinished: the request was carried out.
	StageFinished Stage = "finished"
	// StageUnknown: the request was begun, and its outcome is not known; see [Engine.Resolve].
	StageUnknown Stage = "unknown outcome"
)

// Look returns how far the request with a key is, without a change of the record. It is for a
// route that clients poll: the Location of an interim answer. scope and key are as
// for [Engine.Resolve], but not of a function. Check that this client may see the answer: scope is
// the principal that the route has authenticated. The errors are the store's, [ErrDamaged], and
// [endpoint.ErrNoPrincipal] for a principal that the endpoint refuses.
func (e *Engine) Look(ctx context.Context, scope, key string) (Progress, error) {
	id, err := e.config.named(scope, key, false)
	if err != nil {
		return Progress{}, fmt.Errorf("interlock: looking at a record: %w", err)
	}
	return e.look(ctx, id)
}

// LookCall is [Engine.Look] for authors of adapters: the call has the principal and the key, as for
// [Engine.Do]. It also returns the errors of the call's Key and Scope.
func (e *Engine) LookCall(ctx context.Context, call endpoint.Call) (Progress, error) {
	key, err := call.Key()
	if err != nil {
		return Progress{}, fmt.Errorf("interlock: looking at a record: %w", err)
	}
	scope, err := e.scope(ctx, call)
	if err != nil {
		return Progress{}, fmt.Errorf("interlock: looking at a record: %w", err)
	}
	return e.look(ctx, e.config.record(scope, key))
}

func (e *Engine) look(ctx context.Context, id string) (Progress, error) {
	reply, err := e.store.Claim(ctx, record.ClaimRequest{
		ID: id, Look: true, Strict: e.config.strict,
		Deadline: time.Now().Add(storeWait), Late: func(record.ClaimReply, error) {},
	})
	if err != nil {
		return Progress{}, fmt.Errorf("interlock: looking at a record: %w", unavailable(err))
	}
	var p Progress
	switch reply.State {
	case record.StateInFlight:
		p.Stage = StageInProgress
	case record.StateCompleted, record.StateUnavailable:
		p.Stage = StageFinished
	case record.StateUnknown:
		p.Stage = StageUnknown
	default:
		p.Stage = StageFree
	}
	if reply.Response != "" {
		if p.Answer, err = e.config.open("", reply.Response); err != nil {
			return p, fmt.Errorf("interlock: looking at a record: %w", err)
		}
	}
	return p, nil
}
