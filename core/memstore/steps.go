package memstore

import (
	"context"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
)

// steps are the steps of a request; see [record.StepRequest].
type steps struct{ log, last, open string }

// Step implements [record.Store].
func (s *Store) Step(ctx context.Context, req record.StepRequest) error {
	fault := s.arrive(Request{Op: Step, Key: req.ID, Owner: req.Token, TTL: req.Lease})
	return deliver(ctx, fault, req.Deadline, nil, func() error { return s.step(req) })
}

func (s *Store) step(req record.StepRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	e, err := s.owned(req.ID, req.Token, now)
	if err == nil && (e.state != record.StateInFlight || !e.steps.add(req)) {
		err = driver.ErrNotOwner
	}
	if err != nil {
		return err
	}
	e.ends = later(e.ends, now.Add(req.Lease))
	e.keep(now.Add(req.Retention))
	return nil
}

// add keeps the longer of two texts. It reports whether one is the beginning of the other.
func (s *steps) add(req record.StepRequest) bool {
	log := string(req.Log)
	switch {
	case strings.HasPrefix(s.log, log): // a request that comes again, or late
	case strings.HasPrefix(log, s.log):
		*s = steps{log, req.Last, req.Open}
	default:
		return false
	}
	return true
}

// unsure reports whether an effect may have happened that no attempt is to have again.
func (e *entry) unsure() bool { return e.marked || e.steps.open != "" }

// granted is the reply for the attempt that has the claim.
func (e *entry) granted() record.ClaimReply {
	return record.ClaimReply{State: record.StateGranted, Generation: e.generation, Steps: e.steps.log}
}

// resolveSteps frees a record with steps for the next attempt.
func (e *entry) resolveSteps(req record.ResolveRequest, now time.Time) {
	if req.Step != "" {
		e.steps.log, e.steps.last = e.steps.log+string(req.Log), req.Step
	}
	e.token, e.marked, e.steps.open, e.ends, e.changed = "", false, "", now, now
}
