package rediswire

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/inflight"
)

//go:embed lua/move.lua
var moveSource string

var moveScript = NewScript(complete(moveSource, ""))

var _ driver.Turns = (*Store)(nil)

// passedInfix stands between the name of a lock and the owner that has handed it on: the name of a
// note. move.lua makes it, too.
const passedInfix = ":passed:"

// Space implements [driver.Turns]. A name says nothing about the server: a service may reach one
// server by several addresses.
func (s *Store) Space() string { return fmt.Sprintf("redis %q%s", s.names.prefix, s.names.db) }

// moveRequest is a request that moves a lock to another owner, with room for its arguments.
type moveRequest struct {
	Request
	ask   driver.AcquireRequest
	keys  [3]string
	ms    [3]int64 // lease, fence's, note's
	above int64
	// How many tokens a place gets; 0: it is no place.
	tokens int64
	room   [callArgs + 11]any
}

// move is [Store.Acquire] for a request with a From.
func (s *Store) move(ctx context.Context, ask driver.AcquireRequest) (driver.Reply, error) {
	r := &moveRequest{ask: ask, above: ask.Above}
	r.Late = func() { r.ask.Late(r.reply()) }
	if ask.Kind.Place() {
		var err error
		if _, r.tokens, err = placesOf(&ask); err != nil {
			return driver.Reply{}, err
		}
	}
	r.keys[0], r.keys[1] = s.names.with(ask.Key, fenceSuffix)
	r.ms = [3]int64{clock.Ceil(ask.TTL, time.Millisecond), clock.Ceil(ask.TTL+fenceTime, time.Millisecond), clock.Ceil(ask.Noted, time.Millisecond)}
	r.Make(s, moveScript, r.keys[0], r.room[:]).Keys(&r.keys[0], &r.keys[1])
	if ask.Noted > 0 {
		r.keys[2] = r.keys[0] + passedInfix + ask.From
		r.Keys(&r.keys[2])
	}
	r.Args(&r.ask.Owner, &r.ask.From, &r.ms[0], &r.ms[1], &r.above, s.Publish(), &r.tokens, &r.ms[2])
	r.Deadline, r.Write, r.Asks, r.Stubborn, r.Least = ask.Deadline, true, true, true, 2
	if !r.Do(ctx, ask.Deadline) {
		return driver.Reply{}, inflight.Pending(ctx)
	}
	return r.reply()
}

// reply makes the caller's reply from the script's.
func (r *moveRequest) reply() (driver.Reply, error) {
	rep := driver.Reply{Sent: r.Sent, Ambiguous: r.Ambiguous}
	if r.Err != nil {
		return rep, r.failure(r.ask.Key)
	}
	token, isNumber := r.Val.(int64)
	if list, _ := r.Val.([]any); len(list) == 2 {
		n := numbers(list)
		token, rep.Room, isNumber = n[0], n[1], n[1] > 0
	}
	switch {
	case isNumber && token > 2 && r.Unacked: // other scripts answer -2 to 2, and none of that is a token
		rep.Ambiguous = true // the caller does not have it, the server says otherwise
		return rep, driver.ErrNotReplicated
	case isNumber && token > 2:
		rep.Granted, rep.Token = true, token
		return rep, nil
	case isNumber && token == -3:
		return rep, driver.ErrPassedOn
	case isNumber && token >= -2 && token <= 0:
		return rep, notOwner(token)
	}
	rep.Ambiguous = true // what that server has done is unknown
	return rep, Wrap(ErrReply)
}
