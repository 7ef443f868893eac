package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
)

// fakeStore is a Store in memory, by the clock of the test's bubble. A hook
// decides what happens to each request on its way.
type fakeStore struct {
	mu       sync.Mutex
	records  map[string]*fakeRecord
	gone     map[string]time.Time
	watchers map[string][]*func()
	calls    []call
	hook     func(call) fault
}

type fakeRecord struct {
	token      string
	print      [32]byte
	generation int64
	state      record.State // record.StateInFlight: claimed
	ends       time.Time
	expires    time.Time
	marked     bool
	waits      bool
	response   string
}

// call is one request that reached the store's front door.
type call struct {
	op, id, token string
	n             int // extensions of a batch
}

// fault is what happens to a request.
type fault struct {
	before time.Duration // it takes this long to get there
	after  time.Duration // and its reply this long to come back
	err    error         // returned instead of the reply
	unsent bool          // with err: not executed
	maybe  bool          // with err, or else: ambiguous
}

func newFake() *fakeStore {
	return &fakeStore{records: map[string]*fakeRecord{}, gone: map[string]time.Time{}, watchers: map[string][]*func(){}}
}

// onCall sets the hook.
func (s *fakeStore) onCall(hook func(call) fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook = hook
}

// down makes all requests, or those of some kinds, fail.
func (s *fakeStore) down(ops ...string) {
	s.onCall(func(c call) fault {
		if len(ops) == 0 || slices.Contains(ops, c.op) {
			return fault{err: fmt.Errorf("%w: by the test", core.ErrUnavailable), unsent: true}
		}
		return fault{}
	})
}

func (s *fakeStore) up() { s.onCall(nil) }

func (s *fakeStore) count(op string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, c := range s.calls {
		if c.op == op {
			n++
		}
	}
	return n
}

// only returns the one record that there is, a copy; nil if there is none.
func (s *fakeStore) only(tb testing.TB) *fakeRecord {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var found *fakeRecord
	for id := range s.records {
		if r := s.get(id); r != nil {
			if found != nil {
				tb.Fatal("there are two records")
			}
			copied := *r
			found = &copied
		}
	}
	return found
}

// steal gives every claim to somebody else, as if it had lapsed.
func (s *fakeStore) steal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.records {
		r.token, r.generation, r.ends = "thief", r.generation+1, time.Now().Add(time.Hour)
	}
}

// lapse ends the leases of all claims.
func (s *fakeStore) lapse() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.records {
		r.ends = time.Now()
	}
}

// damage replaces every response.
func (s *fakeStore) damage(response string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.records {
		r.response = response
	}
}

func (s *fakeStore) get(id string) *fakeRecord {
	r := s.records[id]
	if r != nil && !time.Now().Before(r.expires) {
		delete(s.records, id)
		return nil
	}
	return r
}

// send takes a request on its way. exec is run with the store locked. It reports
// false when the caller has to leave first; then late, if any, gets the outcome.
func (s *fakeStore) send(ctx context.Context, c call, deadline time.Time, exec func(), late func(fault)) (fault, bool) {
	s.mu.Lock()
	s.calls = append(s.calls, c)
	var f fault
	if s.hook != nil {
		f = s.hook(c)
	}
	s.mu.Unlock()
	run := func() {
		if !f.unsent {
			s.mu.Lock()
			defer s.mu.Unlock()
			exec()
		}
	}
	if f.before+f.after == 0 {
		run()
		return f, true
	}
	// The reply is the caller's or late's, never both's.
	var mu sync.Mutex
	left, done := false, make(chan struct{})
	go func() {
		<-time.After(f.before)
		run()
		<-time.After(f.after)
		mu.Lock()
		defer mu.Unlock()
		close(done)
		if left && late != nil {
			late(f)
		}
	}()
	limit := (<-chan time.Time)(nil)
	if !deadline.IsZero() {
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		limit = timer.C
	}
	select {
	case <-done:
		return f, true
	case <-ctx.Done():
	case <-limit:
	}
	mu.Lock()
	defer mu.Unlock()
	select {
	case <-done:
		return f, true
	default:
	}
	left = true
	return f, false
}

var errSlow = fmt.Errorf("%w: no answer in time", core.ErrUnavailable)

func (s *fakeStore) Claim(ctx context.Context, q record.ClaimRequest) (record.ClaimReply, error) {
	rep := record.ClaimReply{Sent: time.Now()}
	outcome := func(f fault) (record.ClaimReply, error) {
		rep.Ambiguous = f.maybe
		if f.err != nil {
			return record.ClaimReply{Sent: rep.Sent, Ambiguous: f.maybe}, f.err
		}
		return rep, nil
	}
	f, here := s.send(ctx, call{op: "claim", id: q.ID, token: q.Token}, q.Deadline, func() { s.claim(q, &rep) },
		func(f fault) { q.Late(outcome(f)) })
	if !here {
		return record.ClaimReply{}, errors.Join(driver.ErrPending, context.Cause(ctx))
	}
	return outcome(f)
}

func (s *fakeStore) claim(q record.ClaimRequest, rep *record.ClaimReply) {
	now := time.Now()
	r := s.get(q.ID)
	switch {
	case r == nil && q.Tombstone && now.Before(s.gone[q.ID]):
		rep.State = record.StateExpired
	case r == nil:
		s.records[q.ID] = &fakeRecord{
			token: q.Token, print: q.Fingerprint, generation: 1, state: record.StateInFlight,
			ends: now.Add(q.Lease), expires: now.Add(q.Retention), marked: q.Strict,
		}
		rep.State, rep.Generation = record.StateGranted, 1
	case r.print != q.Fingerprint:
		rep.State = record.StateMismatch
	case r.state != record.StateInFlight:
		rep.State, rep.Response = r.state, r.response
	case r.token == q.Token:
		rep.State, rep.Generation = record.StateGranted, r.generation
	case now.Before(r.ends):
		r.waits = r.waits || q.Waits
		rep.State, rep.Left, rep.Listed = record.StateInFlight, r.ends.Sub(now), q.Waits
	case r.marked || q.Strict:
		rep.State = record.StateUnknown
	default:
		r.token, r.ends, r.generation = q.Token, now.Add(q.Lease), r.generation+1
		r.expires = later(r.expires, now.Add(q.Retention))
		rep.State, rep.Generation = record.StateGranted, r.generation
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (s *fakeStore) Extend(ctx context.Context, batch []record.Extension, done func(int, error)) {
	errs := make([]error, len(batch))
	deadline, _ := ctx.Deadline()
	f, here := s.send(ctx, call{op: "extend", n: len(batch)}, deadline, func() {
		for i, q := range batch {
			r := s.get(q.ID)
			switch {
			case r == nil || r.token != q.Token:
				errs[i] = driver.ErrNotOwner
			case r.state == record.StateInFlight:
				r.ends = later(r.ends, time.Now().Add(q.Lease))
				r.expires = later(r.expires, time.Now().Add(q.Retention))
			}
		}
	}, nil)
	for i := range batch {
		switch {
		case !here:
			done(i, errSlow)
		case f.err != nil:
			done(i, f.err)
		default:
			done(i, errs[i])
		}
	}
}

func (s *fakeStore) Mark(ctx context.Context, q record.MarkRequest) error {
	var err error // written by whoever is late, too
	f, here := s.send(ctx, call{op: "mark", id: q.ID, token: q.Token}, q.Deadline, func() {
		r := s.get(q.ID)
		if r == nil || r.token != q.Token {
			err = driver.ErrNotOwner
			return
		}
		r.marked, r.ends = true, later(r.ends, time.Now().Add(q.Lease))
		r.expires = later(r.expires, time.Now().Add(q.Retention))
	}, nil)
	if !here {
		return errSlow
	}
	return errors.Join(f.err, err)
}

func (s *fakeStore) Commit(ctx context.Context, q record.CommitRequest) (record.CommitReply, error) {
	var rep record.CommitReply
	if q.Release != nil {
		q.Release(ctx)
	}
	f, here := s.send(ctx, call{op: "commit", id: q.ID, token: q.Token}, q.Deadline, func() { rep = s.commit(q) }, nil)
	if !here {
		return record.CommitReply{}, errSlow
	}
	if f.err != nil {
		return record.CommitReply{}, f.err
	}
	return rep, nil
}

func (s *fakeStore) commit(q record.CommitRequest) record.CommitReply {
	now := time.Now()
	r := s.get(q.ID)
	switch {
	case r == nil:
		r = &fakeRecord{token: q.Token, print: q.Fingerprint, generation: q.Generation, state: record.StateInFlight}
		s.records[q.ID] = r
	case r.token != q.Token && r.token != "-" && r.print != q.Fingerprint:
		return record.CommitReply{State: record.StateMismatch}
	case r.token != q.Token && r.token != "-":
		return record.CommitReply{State: r.state, Response: r.response}
	}
	if r.state == record.StateInFlight {
		r.state, r.response = record.StateCompleted, string(q.Response)
		if q.Response == nil {
			r.state = record.StateUnavailable
		}
		r.expires = later(r.expires, now.Add(q.Retention))
		if q.Tombstone > 0 {
			s.gone[q.ID] = r.expires.Add(q.Tombstone)
		}
		s.announce(q.ID, r.waits)
	}
	return record.CommitReply{State: record.StateGranted}
}

// announce wakes who waits. Called with the store locked.
func (s *fakeStore) announce(id string, waits bool) {
	if waits {
		for _, wake := range s.watchers[id] {
			(*wake)()
		}
	}
}

func (s *fakeStore) Abandon(ctx context.Context, q record.AbandonRequest) error {
	var err error
	if q.Release != nil {
		q.Release(ctx)
	}
	f, here := s.send(ctx, call{op: "abandon", id: q.ID, token: q.Token}, q.Deadline, func() {
		r := s.get(q.ID)
		if r == nil || r.token != q.Token || r.state != record.StateInFlight {
			err = driver.ErrNotOwner
			return
		}
		if r.generation > 1 {
			r.token, r.ends = "-", time.Now()
			r.generation--
		} else {
			delete(s.records, q.ID)
		}
		s.announce(q.ID, r.waits)
	}, nil)
	if !here {
		return errSlow
	}
	if f.err != nil {
		return f.err
	}
	return err
}

func (s *fakeStore) Resolve(ctx context.Context, q record.ResolveRequest) error {
	var err error
	f, here := s.send(ctx, call{op: "resolve", id: q.ID, token: q.Token}, q.Deadline, func() {
		r := s.get(q.ID)
		switch {
		case r == nil || r.state != record.StateInFlight || time.Now().Before(r.ends) || !r.marked && !q.Strict:
			err = record.ErrNotUnknown
		case q.Response == nil:
			delete(s.records, q.ID)
		default:
			r.token, r.state, r.response = q.Token, record.StateCompleted, string(q.Response)
			r.expires = later(r.expires, time.Now().Add(q.Retention))
			if q.Tombstone > 0 {
				s.gone[q.ID] = r.expires.Add(q.Tombstone)
			}
		}
	}, nil)
	if !here {
		return errSlow
	}
	return errors.Join(f.err, err)
}

func (s *fakeStore) Forget(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.records, id)
	delete(s.gone, id)
	return nil
}

func (s *fakeStore) Await(id string, _ time.Time, wake func()) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchers[id] = append(s.watchers[id], &wake)
	wake() // as a store does that cannot be sure
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.watchers[id] = slices.DeleteFunc(s.watchers[id], func(w *func()) bool { return w == &wake })
	}
}

var _ record.Store = (*fakeStore)(nil)
