package memstore

import (
	"context"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
)

// records are the store's records of idempotent requests.
type records struct {
	entries  map[string]*entry
	gone     map[string]time.Time // tombstones: until when it is remembered that there was a response
	awaiting map[string][]*awaiting
	sweepAt  int // with so many entries the old ones are removed
}

// entry is one record.
type entry struct {
	token       string // empty: the claim that took over was given up, and the one before it lapsed
	fingerprint [32]byte
	generation  int64
	state       record.State // StateInFlight is a claim
	ends        time.Time    // of the lease
	expires     time.Time    // of the record
	marked      bool
	damaged     bool
	ticket      ticket // the claim was handed over with
	before      ticket // the attempt that handed over has taken the claim with
	response    string // of a claim: the interim response
	answered    string // the token of the attempt with the interim response
	steps       steps
	changed     time.Time // when another token got the record, or the claim was given up
}

var _ record.Store = (*Store)(nil)

// Claim implements [record.Store].
func (s *Store) Claim(ctx context.Context, req record.ClaimRequest) (record.ClaimReply, error) {
	sent := time.Now()
	fault := s.arrive(Request{Op: Claim, Key: req.ID, Owner: req.Token, TTL: req.Lease})
	return travel[record.ClaimReply]{
		fault: fault, deadline: req.Deadline, late: req.Late,
		execute: func() (record.ClaimReply, error) {
			rep, err := s.claim(req)
			rep.Sent = sent
			return rep, err
		},
		lost: record.ClaimReply{Sent: sent, Ambiguous: fault.ambiguous()},
	}.send(ctx)
}

func (s *Store) claim(req record.ClaimRequest) (record.ClaimReply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	e := s.entry(req.ID, now)
	switch {
	case req.Look:
		return e.look(req, now)
	case req.Ticket != "":
		return e.take(req, now)
	case e == nil && req.Tombstone && now.Before(s.records.gone[req.ID]):
		return record.ClaimReply{State: record.StateExpired}, nil
	case e == nil:
		s.enter(req.ID, &entry{
			token: req.Token, fingerprint: req.Fingerprint, generation: 1, state: record.StateInFlight,
			ends: now.Add(req.Lease), expires: now.Add(req.Retention), marked: req.Strict, changed: now,
		}, now)
		return record.ClaimReply{State: record.StateGranted, Generation: 1}, nil
	case e.damaged:
		return record.ClaimReply{}, record.ErrDamaged
	case e.fingerprint != req.Fingerprint:
		return record.ClaimReply{State: record.StateMismatch}, nil
	case e.state != record.StateInFlight:
		return record.ClaimReply{State: e.state, Response: e.response}, nil
	case e.token == req.Token:
		return e.granted(), nil
	case now.Before(e.closed(req.Strict)):
		// The end of each claim is announced, so that nothing has to be noted.
		return record.ClaimReply{
			State: record.StateInFlight, Left: e.closed(req.Strict).Sub(now), Listed: req.Waits, Response: e.response,
		}, nil
	case e.unsure() || req.Strict:
		return record.ClaimReply{State: record.StateUnknown}, nil
	}
	e.takenOver(req.Token, now, req.Lease, req.Retention)
	return e.granted(), nil
}

// keep lengthens the time for which the record is kept.
func (e *entry) keep(until time.Time) { e.expires = later(e.expires, until) }

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Extend implements [record.Store].
func (s *Store) Extend(ctx context.Context, batch []record.Extension, done func(i int, err error)) {
	var slow sync.WaitGroup
	for i, req := range batch {
		fault := s.arrive(Request{Op: Extend, Key: req.ID, Owner: req.Token, TTL: req.Lease})
		fault.run(&slow, func() {
			done(i, deliver(ctx, fault, time.Time{}, nil, func() error {
				return s.renewClaim(req.ID, req.Token, req.Lease, req.Retention, func(*entry) {})
			}))
		})
	}
	slow.Wait()
}

// Mark implements [record.Store].
func (s *Store) Mark(ctx context.Context, req record.MarkRequest) error {
	fault := s.arrive(Request{Op: Mark, Key: req.ID, Owner: req.Token, TTL: req.Lease, HandOver: req.HandOver})
	return deliver(ctx, fault, req.Deadline, nil, func() error {
		return s.renewClaim(req.ID, req.Token, req.Lease, req.Retention, func(e *entry) {
			if req.HandOver {
				e.handOver()
			} else {
				e.marked = true
			}
		})
	})
}

// renewClaim renews the lease of a claim, and notes something on it.
func (s *Store) renewClaim(id, token string, lease, retention time.Duration, note func(*entry)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	e, err := s.owned(id, token, now)
	if err != nil || e.state != record.StateInFlight {
		return err // with a response there is nothing to renew or to mark
	}
	e.ends = later(e.ends, now.Add(lease))
	note(e)
	e.keep(now.Add(retention))
	return nil
}

// owned returns the record of a token.
func (s *Store) owned(id, token string, now time.Time) (*entry, error) {
	switch e := s.entry(id, now); {
	case e == nil:
		return nil, driver.ErrNotOwner
	case e.damaged:
		return nil, record.ErrDamaged
	case e.token != token:
		return nil, driver.ErrNotOwner
	default:
		return e, nil
	}
}

// Commit implements [record.Store].
func (s *Store) Commit(ctx context.Context, req record.CommitRequest) (record.CommitReply, error) {
	return travel[record.CommitReply]{
		fault: s.arrive(Request{Op: Commit, Key: req.ID, Owner: req.Token}), deadline: req.Deadline,
		execute:   func() (record.CommitReply, error) { return s.commit(req) },
		meanwhile: releasing(ctx, req.Release),
	}.send(ctx)
}

// releasing calls the Release of a request.
func releasing(ctx context.Context, release func(context.Context)) func() {
	if release == nil {
		return nil
	}
	return func() { release(ctx) }
}

func (s *Store) commit(req record.CommitRequest) (record.CommitReply, error) {
	s.mu.Lock()
	now := s.now()
	e := s.entry(req.ID, now)
	e.promised(req, now)
	if rep, err := e.refused(req); err != nil || rep.State != 0 {
		s.mu.Unlock()
		return rep, err
	}
	if req.Interim {
		e.response, e.answered, e.changed = string(req.Response), req.Token, now
		e.keep(now.Add(req.Retention))
		wake := s.announcing(req.ID)
		s.mu.Unlock()
		wake()
		return record.CommitReply{State: record.StateGranted}, nil
	}
	if e == nil {
		e = &entry{}
		s.enter(req.ID, e, now)
	}
	e.token, e.fingerprint, e.generation = req.Token, req.Fingerprint, req.Generation
	wake := s.complete(req.ID, e, req.Response, now.Add(req.Retention), req.Tombstone)
	s.mu.Unlock()
	wake()
	return record.CommitReply{State: record.StateGranted}, nil
}

// refused says why a response is not stored. The reply has no State if it is.
func (e *entry) refused(req record.CommitRequest) (record.CommitReply, error) {
	switch {
	case e == nil && req.Interim:
		return record.CommitReply{State: record.StateUnknown}, nil
	case e == nil:
		return record.CommitReply{}, nil // the store has lost the record: this is the only answer there is
	case e.damaged:
		return record.CommitReply{}, record.ErrDamaged
	case req.Interim && e.ticket.token == req.Token:
		if e.state != record.StateInFlight {
			return record.CommitReply{State: record.StateGranted}, nil // the final response counts
		}
		return record.CommitReply{}, nil
	case req.Interim && (e.token == req.Token || e.token == ""):
		return record.CommitReply{State: record.StateUnknown}, nil
	case e.token == req.Token && e.state != record.StateInFlight:
		return record.CommitReply{State: record.StateGranted}, nil // by an earlier try
	case e.token == req.Token, e.token == "":
		return record.CommitReply{}, nil
	case e.fingerprint != req.Fingerprint:
		return record.CommitReply{State: record.StateMismatch}, nil
	default:
		return record.CommitReply{State: e.state, Response: e.response}, nil
	}
}

// complete stores a response. The caller holds s.mu, and calls what complete returns
// after it has given s.mu back: it wakes the requests that wait.
func (s *Store) complete(id string, e *entry, response []byte, until time.Time, tombstone time.Duration) (wake func()) {
	e.state, e.response, e.steps = record.StateCompleted, string(response), steps{}
	if response == nil {
		e.state = record.StateUnavailable
	}
	e.keep(until)
	if tombstone > 0 {
		s.records.gone[id] = later(s.records.gone[id], e.expires.Add(tombstone))
	}
	return s.announcing(id)
}

// Abandon implements [record.Store].
func (s *Store) Abandon(ctx context.Context, req record.AbandonRequest) error {
	fault := s.arrive(Request{Op: Abandon, Key: req.ID, Owner: req.Token})
	return deliver(ctx, fault, req.Deadline, releasing(ctx, req.Release), func() error {
		return s.abandon(req.ID, req.Token)
	})
}

func (s *Store) abandon(id, token string) error {
	s.mu.Lock()
	now := s.now()
	e, err := s.owned(id, token, now)
	if err == nil && (e.state != record.StateInFlight || e.ticket.token == token && e.response != "" && e.answered == token) {
		err = driver.ErrNotOwner // of nothing that can be given up
	}
	if err != nil {
		s.mu.Unlock()
		return err
	}
	e.steps.open = ""            // an attempt that gives up has no step under way
	if e.ticket.token == token { // it counts no more
		e.ticket, e.before = e.before, ticket{}
	}
	switch {
	case e.ticket.token != "": // back to the ticket that the attempt came with
		e.token, e.generation, e.ends, e.changed = "", e.generation-1, e.ticket.ends, now
	case e.generation > 1 || e.steps.log != "":
		e.token, e.generation, e.ends, e.changed = "", e.generation-1, now, now
	default:
		delete(s.records.entries, id)
	}
	wake := s.announcing(id)
	s.mu.Unlock()
	wake()
	return nil
}

// Resolve implements [record.Store].
func (s *Store) Resolve(ctx context.Context, req record.ResolveRequest) error {
	fault := s.arrive(Request{Op: Resolve, Key: req.ID, Owner: req.Token})
	return deliver(ctx, fault, req.Deadline, nil, func() error { return s.resolve(req) })
}

func (s *Store) resolve(req record.ResolveRequest) error {
	s.mu.Lock()
	now := s.now()
	e := s.entry(req.ID, now)
	wake := func() {}
	var err error
	switch {
	case e == nil:
		err = record.ErrNotUnknown
	case e.damaged:
		err = record.ErrDamaged
	case e.token == req.Token: // by an earlier try
	case e.state != record.StateInFlight || now.Before(e.ends) || !e.unsure() && !req.Strict,
		req.Step != "" && e.steps.open != req.Step:
		err = record.ErrNotUnknown
	case req.Response == nil && (e.steps.log != "" || req.Step != ""):
		e.resolveSteps(req, now)
		wake = s.announcing(req.ID)
	case req.Response == nil:
		delete(s.records.entries, req.ID)
		wake = s.announcing(req.ID)
	default:
		e.token, e.changed = req.Token, now
		wake = s.complete(req.ID, e, req.Response, now.Add(req.Retention), req.Tombstone)
	}
	s.mu.Unlock()
	wake()
	return err
}

// Forget implements [record.Store].
func (s *Store) Forget(ctx context.Context, id string) error {
	return deliver(ctx, s.arrive(Request{Op: Forget, Key: id}), time.Time{}, nil, func() error {
		s.mu.Lock()
		delete(s.records.entries, id)
		delete(s.records.gone, id)
		wake := s.announcing(id)
		s.mu.Unlock()
		wake()
		return nil
	})
}

// deliver sends a request that returns an error only.
func deliver(ctx context.Context, fault Fault, deadline time.Time, meanwhile func(), execute func() error) error {
	_, err := travel[struct{}]{
		fault: fault, deadline: deadline, meanwhile: meanwhile,
		execute: func() (struct{}, error) { return struct{}{}, execute() },
	}.send(ctx)
	return err
}

// entry returns the record of an id, nil if there is none or its retention has ended. The
// caller holds s.mu.
func (s *Store) entry(id string, now time.Time) *entry {
	e := s.records.entries[id]
	if e == nil || !now.Before(e.expires) {
		return nil
	}
	return e
}

// enter adds a record. The caller holds s.mu.
func (s *Store) enter(id string, e *entry, now time.Time) {
	r := &s.records
	if len(r.entries) >= r.sweepAt {
		for id, e := range r.entries {
			if !now.Before(e.expires) {
				delete(r.entries, id)
			}
		}
		for id, until := range r.gone {
			if !now.Before(until) {
				delete(r.gone, id)
			}
		}
		r.sweepAt = max(sweepAt, 2*len(r.entries))
	}
	r.entries[id] = e
}
