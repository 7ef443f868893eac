package rediswire

import (
	"context"
	_ "embed"
	"strconv"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/inflight"
)

//go:embed lua/line.lua
var lineSource string

var lineScript = NewScript(complete(lineSource, ""))

// The keys in addition to the lock's, by the line of the callers.
const (
	newestSuffix = ":newest"
	waiterSuffix = ":waiter"
)

// lineRequest is a request of a caller that is not in turn, with room for its arguments.
type lineRequest struct {
	Request
	ask          driver.AcquireRequest
	keys         [3]string
	ms           [2]int64 // lease, fence's
	waiter       string
	line, number int64
	order        int64
	room         [callArgs + 11]any
}

// askInLine is [Store.Acquire] for a caller that is not in turn. Without an owner it is
// [Store.Stand].
func (s *Store) askInLine(ctx context.Context, ask driver.AcquireRequest) (driver.Reply, error) {
	r := &lineRequest{ask: ask, waiter: string(ask.Waiter), line: int64(ask.Line), number: ask.Number, order: ask.Order}
	r.Late = func() {
		if r.ask.Late != nil {
			r.ask.Late(r.reply())
		}
	}
	r.keys[0], r.keys[1] = s.names.with(ask.Key, fenceSuffix)
	r.keys[2] = r.keys[0] + newestSuffix
	if ask.Line == driver.OneWaiter {
		r.keys[2] = r.keys[0] + waiterSuffix
	}
	r.ms = [2]int64{clock.Ceil(ask.TTL, time.Millisecond), clock.Ceil(ask.TTL+fenceTime, time.Millisecond)}
	if r.waiter != "" && ask.Offer != 0 {
		r.waiter += "=" + strconv.FormatInt(ask.Offer, 10)
	}
	if r.waiter != "" && ask.Left > 0 {
		r.waiter += "@" + strconv.FormatInt(clock.Ceil(min(ask.Left, longest), time.Millisecond), 10)
	}
	r.Make(s, lineScript, r.keys[0], r.room[:]).Keys(&r.keys[0], &r.keys[1], &r.keys[2]).
		Args(&r.ask.Owner, &r.ms[0], &r.ms[1], &r.waiter, &r.line, &r.number, &r.order)
	r.Deadline, r.Write, r.Asks = ask.Deadline, ask.Owner != "", true
	if !r.Do(ctx, ask.Deadline) {
		return driver.Reply{}, inflight.Pending(ctx)
	}
	s.noteTrip(&r.Request)
	return r.reply()
}

// Stand implements [driver.Turns].
func (s *Store) Stand(ctx context.Context, ask driver.AcquireRequest) (driver.Reply, error) {
	rep, err := s.askInLine(ctx, ask)
	if err == nil && rep.Granted {
		err = Wrap(ErrReply) // there is no owner
	}
	return rep, err
}

// reply makes the caller's reply from the script's.
func (r *lineRequest) reply() (driver.Reply, error) {
	rep := driver.Reply{Sent: r.Sent, Ambiguous: r.Ambiguous}
	if r.Err != nil {
		return rep, r.failure(r.ask.Key)
	}
	list, _ := r.Val.([]any)
	n := numbers(list)
	switch len(list) {
	case 1:
		if list[0] == any(int64(0)) {
			rep.Out = true
			return rep, nil
		}
	case 3:
		if n[0] > 2 && n[1] >= 0 && n[2] >= 0 && r.Unacked {
			rep.Ambiguous = true // the caller does not have it, the server says otherwise
			return rep, driver.ErrNotReplicated
		}
		if n[0] > 2 && n[1] >= 0 && n[2] >= 0 {
			rep.Granted, rep.Token, rep.Number, rep.Room = true, n[0], n[1], n[2]
			return rep, nil
		}
	case 4:
		holder, ok := list[0].(string)
		if ok && (n[2] == 0 || n[2] == 1) && n[3] >= 0 {
			rep.Holder, rep.TTL, rep.Listed, rep.Number = holder, time.Duration(n[1])*time.Millisecond, n[2] == 1, n[3]
			return rep, nil
		}
	}
	rep.Ambiguous = true // what that server has done is unknown
	return rep, Wrap(ErrReply)
}
