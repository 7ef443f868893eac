package recordtest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
)

// suite is one part of the contract on one store.
type suite struct {
	*testing.T
	store record.Store
}

// name is what messages call a state.
func name(state record.State) string {
	names := []string{"no state", "granted", "in flight", "completed", "unavailable", "mismatch", "unknown", "expired"}
	if state < 0 || int(state) >= len(names) {
		return "a state that does not exist"
	}
	return names[state]
}

// attempt is one run of one request, as the engine makes it.
type attempt struct {
	id, token  string
	print      [sha256.Size]byte
	generation int64
}

// first makes an attempt at a record that no test has used.
func first() attempt {
	hash := func() (h [sha256.Size]byte) {
		rand.Read(h[:]) // never fails (crypto/rand, Go 1.24)
		return h
	}
	id := hash()
	return attempt{
		id: base64.RawURLEncoding.EncodeToString(id[:]), token: rand.Text(), print: hash(), generation: 1,
	}
}

// again is another attempt of the same request.
func (a attempt) again() attempt {
	a.token = rand.Text()
	return a
}

// other is an attempt of another request with the same key.
func (a attempt) other() attempt {
	b := first()
	b.id = a.id
	return b
}

// An option changes a claim, which by default has the lease long and the retention
// kept.
type option func(*record.ClaimRequest)

func leased(d time.Duration) option {
	return func(req *record.ClaimRequest) { req.Lease = d }
}

func retained(d time.Duration) option {
	return func(req *record.ClaimRequest) { req.Retention = d }
}

func strict(req *record.ClaimRequest)    { req.Strict = true }
func tombstone(req *record.ClaimRequest) { req.Tombstone = true }
func waits(req *record.ClaimRequest)     { req.Waits = true }

func (s *suite) request(a attempt, opts ...option) record.ClaimRequest {
	req := record.ClaimRequest{
		ID: a.id, Token: a.token, Fingerprint: a.print, Lease: long, Retention: kept,
		Deadline: time.Now().Add(patience),
		Late: func(rep record.ClaimReply, err error) {
			s.Errorf("Claim called Late(%s, %v), and had not returned ErrPending", name(rep.State), err)
		},
	}
	for _, opt := range opts {
		opt(&req)
	}
	return req
}

// ask makes a claim, which must not fail. It can be called from any goroutine.
func (s *suite) ask(a attempt, opts ...option) record.ClaimReply {
	s.Helper()
	before := time.Now()
	rep, err := s.store.Claim(s.Context(), s.request(a, opts...))
	if err != nil {
		s.Errorf("Claim: %v", err)
		return rep
	}
	if rep.Sent.Before(before) || rep.Sent.After(time.Now()) {
		s.Errorf("Claim: ClaimReply.Sent is %v, outside of the call that began at %v", rep.Sent, before)
	}
	if rep.Ambiguous {
		s.Error("Claim: an answer without an error is called ambiguous")
	}
	return rep
}

// grant makes a claim that must be granted, with this generation.
func (s *suite) grant(a attempt, generation int64, opts ...option) attempt {
	s.Helper()
	if rep := s.ask(a, opts...); rep.State != record.StateGranted || rep.Generation != generation {
		s.Fatalf("Claim: %s with generation %d; want it granted with %d", name(rep.State), rep.Generation, generation)
	}
	a.generation = generation
	return a
}

// claimed is the claim of a new attempt.
func (s *suite) claimed(opts ...option) attempt {
	s.Helper()
	return s.grant(first(), 1, opts...)
}

// find makes a claim that must find a state.
func (s *suite) find(a attempt, want record.State, opts ...option) record.ClaimReply {
	s.Helper()
	rep := s.ask(a, opts...)
	if rep.State != want {
		s.Fatalf("Claim: %s; want %s", name(rep.State), name(want))
	}
	return rep
}

// replayed checks that the record has a response.
func (s *suite) replayed(a attempt, want string) {
	s.Helper()
	same(s, s.find(a.again(), record.StateCompleted).Response, want)
}

// same compares envelopes. The report shows their beginning.
func same(s *suite, got, want string) {
	s.Helper()
	if got != want {
		s.Fatalf("the response has %d bytes, %.60q; want %d, %.60q", len(got), got, len(want), want)
	}
}

// lapse waits until the lease of the record's claim has ended. A strict claim finds
// that out and takes nothing.
func (s *suite) lapse(a attempt) {
	s.Helper()
	s.until("the lease has ended", func() bool {
		switch rep := s.ask(a.again(), strict); rep.State {
		case record.StateUnknown:
			return true
		case record.StateInFlight:
		default:
			s.Fatalf("a strict claim: %s; want it in flight, and unknown after the lease", name(rep.State))
		}
		return false
	})
}

// lapsed is the claim of a new attempt after the end of its lease.
func (s *suite) lapsed(opts ...option) attempt {
	s.Helper()
	a := s.claimed(append([]option{leased(tiny)}, opts...)...)
	s.lapse(a)
	return a
}

// unknown is the marked claim of a new attempt after the end of its lease.
func (s *suite) unknown() attempt {
	s.Helper()
	a := s.claimed(leased(tiny))
	s.mark(a, tiny, kept, nil)
	s.lapse(a)
	return a
}

// bounded is the context of an extension.
func (s *suite) bounded() (context.Context, context.CancelFunc) {
	return context.WithTimeout(s.Context(), patience)
}

// extend renews one lease.
func (s *suite) extend(a attempt, lease, retention time.Duration) (failure error) {
	s.Helper()
	ctx, cancel := s.bounded()
	defer cancel()
	calls := 0
	batch := []record.Extension{{ID: a.id, Token: a.token, Lease: lease, Retention: retention}}
	s.store.Extend(ctx, batch, func(i int, err error) {
		if i != 0 {
			s.Errorf("Extend of one lease reports index %d", i)
		}
		calls++
		failure = err
	})
	if calls != 1 {
		s.Fatalf("Extend of one lease called done %d times before it returned", calls)
	}
	return failure
}

// mark marks a claim; want is nil or the error to match.
func (s *suite) mark(a attempt, lease, retention time.Duration, want error) {
	s.Helper()
	err := s.store.Mark(s.Context(), record.MarkRequest{
		ID: a.id, Token: a.token, Lease: lease, Retention: retention, Deadline: time.Now().Add(patience),
	})
	if !errors.Is(err, want) {
		s.Fatalf("Mark: %v; want %v", err, want)
	}
}

func (a attempt) commit(response []byte) record.CommitRequest {
	return record.CommitRequest{
		ID: a.id, Token: a.token, Fingerprint: a.print, Generation: a.generation,
		Response: response, Retention: kept, Deadline: time.Now().Add(patience),
	}
}

// commit makes a commit, which must not fail. It can be called from any goroutine.
func (s *suite) commit(req record.CommitRequest) record.CommitReply {
	s.Helper()
	rep, err := s.store.Commit(s.Context(), req)
	if err != nil {
		s.Errorf("Commit: %v", err)
	}
	return rep
}

// stored makes a commit that must be stored.
func (s *suite) stored(req record.CommitRequest) {
	s.Helper()
	if rep := s.commit(req); !rep.Stored() {
		s.Fatalf("Commit: %s; want it stored, which is granted", name(rep.State))
	}
}

// late makes a commit that must find the record of another token.
func (s *suite) late(a attempt, want record.State, response string) {
	s.Helper()
	rep := s.commit(a.commit([]byte("too late")))
	if rep.State != want {
		s.Fatalf("Commit: %s; want %s", name(rep.State), name(want))
	}
	same(s, rep.Response, response)
}

// abandon gives a claim up; want is nil or the error to match.
func (s *suite) abandon(a attempt, want error) {
	s.Helper()
	err := s.store.Abandon(s.Context(), record.AbandonRequest{ID: a.id, Token: a.token, Deadline: time.Now().Add(patience)})
	if !errors.Is(err, want) {
		s.Fatalf("Abandon: %v; want %v", err, want)
	}
}

// powerless checks that a token has no claim any more.
func (s *suite) powerless(a attempt) {
	s.Helper()
	s.mark(a, long, kept, driver.ErrNotOwner)
	s.abandon(a, driver.ErrNotOwner)
	if err := s.extend(a, long, kept); !errors.Is(err, driver.ErrNotOwner) {
		s.Fatalf("Extend: %v; want %v", err, driver.ErrNotOwner)
	}
}

func (s *suite) forget(a attempt) {
	s.Helper()
	if err := s.store.Forget(s.Context(), a.id); err != nil {
		s.Fatalf("Forget: %v", err)
	}
}

// until waits for a condition.
func (s *suite) until(what string, met func() bool) {
	s.Helper()
	for end := time.Now().Add(patience); !met(); {
		if time.Now().After(end) {
			s.Fatalf("not within %v: %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
