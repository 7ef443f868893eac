package redisstore

import (
	"context"
	"fmt"
	"strings"
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

// Mark implements [record.Store].
func (s *Store) Mark(ctx context.Context, ask record.MarkRequest) error {
	r := &settling{token: ask.Token}
	r.names[0] = s.wire.Record(ask.ID)
	r.ms = [2]int64{clock.Ceil(ask.Lease, time.Millisecond), clock.Ceil(ask.Retention, time.Millisecond)}
	note := any("m")
	if ask.HandOver {
		note = "h"
	}
	r.Make(s.wire, markScript, r.names[0], r.room[:]).Keys(&r.names[0]).Args(&r.token, &r.ms[0], &r.ms[1], note)
	r.Deadline, r.Write = ask.Deadline, true
	switch word, err := r.word(r.Do(ctx, r.Deadline)); {
	case err != nil:
		return err
	case word == "lost":
		return driver.ErrNotOwner
	case word != "marked":
		return wrapRecord(rediswire.ErrReply)
	case r.Unacked:
		return driver.ErrNotReplicated
	}
	return nil
}

// Step implements [record.Store].
func (s *Store) Step(ctx context.Context, ask record.StepRequest) error {
	r := &settling{token: ask.Token}
	r.names[0] = s.wire.Record(ask.ID)
	r.ms = [2]int64{clock.Ceil(ask.Lease, time.Millisecond), clock.Ceil(ask.Retention, time.Millisecond)}
	r.Make(s.wire, stepScript, r.names[0], r.room[:]).Keys(&r.names[0]).
		Args(&r.token, &r.ms[0], &r.ms[1], ask.Log, ask.Last, ask.Open)
	r.Deadline, r.Write = ask.Deadline, true
	switch word, err := r.word(r.Do(ctx, r.Deadline)); {
	case err != nil:
		return err
	case word == "lost":
		return driver.ErrNotOwner
	case word != "stepped":
		return wrapRecord(rediswire.ErrReply)
	case r.Unacked:
		return driver.ErrNotReplicated
	}
	return nil
}

// settling is a request about a claim that is the caller's, with room for its
// arguments.
type settling struct {
	rediswire.Request
	token string
	names [2]string // record, and tombstone or channel
	ms    [2]int64
	room  [12]any
}

// word returns a reply that is one.
func (r *settling) word(answered bool) (string, error) {
	if !answered {
		return "", wrapRecord(rediswire.ErrNoAnswer)
	}
	if r.Err != nil {
		return "", wrapRecord(r.Err)
	}
	word, _ := r.Val.(string)
	return word, nil
}

// commit is a commit on its way, with room for its arguments.
type commit struct {
	rediswire.Request
	ask   record.CommitRequest
	names [3]string // record, tombstone, channel
	ms    [2]int64  // retention, tombstone's
	room  [14]any
}

// Commit implements [record.Store].
func (s *Store) Commit(ctx context.Context, ask record.CommitRequest) (record.CommitReply, error) {
	r := &commit{ask: ask}
	name := s.wire.Record(ask.ID)
	r.names[0], r.names[2] = name, s.wire.Completion(name)
	r.ms = [2]int64{clock.Ceil(ask.Retention, time.Millisecond), clock.Ceil(ask.Retention+ask.Tombstone, time.Millisecond)}
	r.Make(s.wire, commitScript, name, r.room[:]).Keys(&r.names[0])
	if ask.Tombstone > 0 && !ask.Interim {
		r.names[1] = rediswire.TombstoneOf(name)
		r.Keys(&r.names[1])
	}
	state := any("d")
	switch {
	case ask.Interim:
		state = "c"
	case ask.Response == nil:
		state = "x"
	}
	r.Args(&r.ask.Token, r.ask.Fingerprint[:], &r.ask.Generation, state, r.ask.Response, &r.ms[0],
		&r.names[2], s.wire.Publish(), &r.ms[1])
	r.Deadline, r.Write = ask.Deadline, true
	if !r.DoWithRelease(ctx, ask.Release) {
		return record.CommitReply{}, wrapRecord(rediswire.ErrNoAnswer)
	}
	if r.Err != nil {
		return record.CommitReply{}, wrapRecord(r.Err)
	}
	words := r.Words("commit")
	if words == nil {
		return record.CommitReply{}, wrapRecord(rediswire.ErrReply)
	}
	// Too few replicas are no reason to keep the answer back: it is stored, and
	// nothing that could be done now would make it safer.
	switch words[0] {
	case "unannounced":
		s.wire.SayMute()
		fallthrough
	case "stored":
		return record.CommitReply{State: record.StateGranted}, nil
	}
	rep := record.CommitReply{}
	if rep.State, rep.Response = stateOf(words); rep.State == 0 {
		return rep, wrapRecord(rediswire.ErrReply)
	}
	return rep, nil
}

// Abandon implements [record.Store].
func (s *Store) Abandon(ctx context.Context, ask record.AbandonRequest) error {
	r := &settling{token: ask.Token}
	name := s.wire.Record(ask.ID)
	r.names = [2]string{name, s.wire.Completion(name)}
	r.Make(s.wire, abandonScript, name, r.room[:]).Keys(&r.names[0]).Args(&r.token, &r.names[1], s.wire.Publish())
	r.Deadline = ask.Deadline
	switch word, err := r.word(r.DoWithRelease(ctx, ask.Release)); {
	case err != nil:
		return err
	case word == "lost" && !r.Ambiguous:
		return driver.ErrNotOwner
	case word == "unannounced":
		s.wire.SayMute()
	case word != "lost" && word != "abandoned":
		return wrapRecord(rediswire.ErrReply)
	}
	return nil
}

// Resolve implements [record.Store].
func (s *Store) Resolve(ctx context.Context, ask record.ResolveRequest) error {
	r := &settling{token: ask.Token}
	name := s.wire.Record(ask.ID)
	r.names = [2]string{name, rediswire.TombstoneOf(name)}
	r.ms = [2]int64{clock.Ceil(ask.Retention, time.Millisecond), clock.Ceil(ask.Retention+ask.Tombstone, time.Millisecond)}
	r.Make(s.wire, resolveScript, name, r.room[:]).Keys(&r.names[0])
	if ask.Tombstone > 0 {
		r.Keys(&r.names[1])
	}
	r.Args(&r.token, ask.Response, &r.ms[0], rediswire.Flag(ask.Strict), &r.ms[1], ask.Step, ask.Log)
	r.Deadline = ask.Deadline
	switch word, err := r.word(r.Do(ctx, r.Deadline)); {
	case err != nil:
		return err
	case word == "known" && r.Ambiguous && ask.Response == nil, word == "resolved":
		return nil
	case word == "known":
		return record.ErrNotUnknown
	case word == "damaged":
		return record.ErrDamaged
	}
	return wrapRecord(rediswire.ErrReply)
}

// Forget implements [record.Store].
func (s *Store) Forget(ctx context.Context, id string) error {
	name := s.wire.Record(id)
	return s.wire.Delete(ctx, name, rediswire.TombstoneOf(name))
}

// Await implements [record.Store].
func (s *Store) Await(id string, since time.Time, wake func()) (stop func()) {
	return s.wire.Subscribe(s.wire.Completion(s.wire.Record(id)), since, func(string) { wake() })
}

// Extend implements [record.Store]. As with locks, it renews leases on different
// servers in parallel and leases on one server in pipelines, on separate connections.
func (s *Store) Extend(ctx context.Context, batch []record.Extension, done func(i int, err error)) {
	if len(batch) == 0 {
		return
	}
	s.wire.Round(ctx, len(batch), func(i int, r *rediswire.Renewal) {
		e := batch[i]
		r.Ask(extendScript, s.wire.Record(e.ID), e.Token, e.Lease, e.Retention)
	}, func(i int, r *rediswire.Request) { done(i, extended(r)) })
}

// extended reads the result of the script for a claim.
func extended(r *rediswire.Request) error {
	if r.Err != nil {
		return wrapRecord(r.Err)
	}
	switch r.Val {
	case "lost":
		return driver.ErrNotOwner
	case "renewed", "done":
		return nil
	}
	return wrapRecord(rediswire.ErrReply)
}

// wrapRecord is [rediswire.Wrap] for records: a key of another type is a damaged record.
func wrapRecord(err error) error {
	if rediswire.IsReply(err) && strings.HasPrefix(err.Error(), "WRONGTYPE ") {
		return fmt.Errorf("%w: %w", record.ErrDamaged, err)
	}
	return rediswire.Wrap(err)
}
