package redisstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/rediswire"
)

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
