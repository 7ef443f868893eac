//go:build integration

package keystate

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/internal/drawn"
)

// The scripts have the rules of package keystate in another language. A world makes random calls of
// the scripts, and has a record carry out the same requests: reply, announcement, offer and list must
// be the same. The server carried a call out between two readings of its clock, and Redis counts
// leases in whole milliseconds. So the record is tried at a few instants, and a world keeps each
// record that agrees. It fails when none is left.

// asks has the fields of requests that the worlds draw.
var asks drawn.Fields[driver.AcquireRequest]

// asked is a call of a script.
type asked struct {
	script string
	owner  string
	lease  int64 // ms
	atMost int64
	tokens int64
	id     string // the name of the locker
	left   int64
	token  int64 // of a release that remembers; else 0
	line   driver.Line
	number int64
	order  int64
	offer  int64
	from   string // the owner that hands the lock on
	above  int64
	noted  int64 // ms
}

// seen is the state right after a call.
type seen struct {
	message         string
	offer           string
	q               string
	exists          bool
	kept            bool
	lockMS, fenceMS int64 // as PTTL tells
	fence           int64 // the token
}

// effect is what a call does, without times.
type effect struct {
	granted       bool
	token, number int64
	holder        string
	listed, full  bool
	out           bool
	code          int64 // of a renewal or release: 1, 2 where others wait; 0 deleted, -1 taken over, -3 handed on
	waiting       string
	message       string
	offer         string
	q             string
}

// arguments returns what a script is called with.
func (c asked) arguments(key string) (keys []string, args []any) {
	lock, fence := key, key+":fence"
	waiter := c.id
	if c.offer != 0 {
		waiter += fmt.Sprint("=", c.offer)
	}
	if waiter != "" && c.left > 0 {
		waiter += fmt.Sprint("@", c.left)
	}
	switch c.script {
	case "acquire":
		return []string{lock, fence}, []any{c.owner, c.lease, c.lease + 60_000, waiter}
	case "line":
		suffix := ":newest"
		if c.line == driver.OneWaiter {
			suffix = ":waiter"
		}
		return []string{lock, fence, lock + suffix}, []any{c.owner, c.lease, c.lease + 60_000, waiter, int64(c.line), c.number, c.order}
	case "enter":
		return []string{lock, fence}, []any{c.owner, c.lease, c.lease + 60_000, c.atMost, c.id, c.tokens}
	case "move":
		keys = []string{lock, fence}
		if c.noted > 0 {
			keys = append(keys, lock+":passed:"+c.from)
		}
		return keys, []any{c.owner, c.from, c.lease, c.lease + 60_000, c.above, "RPUSH", c.tokens, c.noted}
	case "stay", "renew":
		return []string{lock}, []any{c.owner, c.lease}
	case "leave":
		keys, args = []string{lock}, []any{c.owner, "RPUSH", c.id, c.atMost}
	case "decline":
		return []string{lock}, []any{c.id, "RPUSH"}
	default:
		keys, args = []string{lock}, []any{c.owner, "RPUSH", c.id}
	}
	if c.token > 0 {
		keys, args = append(keys, fence), append(args, c.token, 60_000)
	}
	return keys, args
}

func (c asked) kind() driver.Kind {
	switch {
	case c.script == "stay", c.atMost == 0 && (c.script == "enter" || c.script == "leave"):
		return driver.Shared
	case c.script == "enter", c.script == "leave", c.script == "move" && c.tokens > 1:
		return driver.Permit
	case c.script == "move" && c.tokens == 1:
		return driver.Shared
	default:
		return driver.Exclusive
	}
}

// tries reports whether it is a try to get the lock.
func (c asked) tries() bool {
	return c.script == "acquire" || c.script == "enter" || c.script == "line"
}

// by has a record carry the call out. ttl is when to ask again.
func (c asked) by(r *candidate, now time.Time) (o effect, ttl time.Duration, room int64) {
	ms := func(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
	var n Notices
	var err error
	contended := false
	switch {
	case c.tries():
		ask := r.Acquire
		if c.owner == "" {
			ask = r.Stand
		}
		req := driver.AcquireRequest{
			Owner: c.owner, Kind: c.kind(), AtMost: int(c.atMost), TTL: ms(c.lease), Waiter: driver.Waiter(c.id), Left: ms(c.left),
			Line: c.line, Number: c.number, Order: c.order, Offer: c.offer,
		}
		asks.Note(req)
		var rep driver.Reply
		rep, n = ask(req, now)
		r.Again(&rep, driver.Waiter(c.id).ID())
		o.granted, o.token, o.number, o.holder = rep.Granted, rep.Token, rep.Number, rep.Holder
		o.listed, o.full, o.out = rep.Listed, rep.Full, rep.Out
		ttl, room = rep.TTL, rep.Room
	case c.script == "move":
		req := driver.AcquireRequest{
			Owner: c.owner, Kind: c.kind(), AtMost: int(c.atMost), TTL: ms(c.lease), From: c.from, Above: c.above, Noted: ms(c.noted),
		}
		asks.Note(req)
		var rep driver.Reply
		rep, n, err = r.Move(req, now)
		if n.Noted > 0 {
			r.notes[c.from] = now.Add(n.Noted)
		}
		if err != nil && now.Before(r.notes[c.from]) {
			err = driver.ErrPassedOn
		}
		o.granted, o.token, room = rep.Granted, rep.Token, rep.Room
	case c.script == "stay", c.script == "renew":
		contended, err = r.Renew(driver.Renewal{Owner: c.owner, Kind: c.kind(), TTL: ms(c.lease)}, now)
	case c.script == "decline":
		r.At(now)
		before := len(list(string(r.Waiting())))
		if n = r.Decline(driver.Waiter(c.id).ID(), now); before == len(list(string(r.Waiting()))) && !n.Freed {
			err = driver.ErrDeleted
		}
	default:
		var found driver.Waiting
		found, n, err = r.Release(driver.ReleaseRequest{
			Owner: c.owner, Kind: c.kind(), AtMost: int(c.atMost), Token: c.token, Waiter: driver.Waiter(c.id),
		}, func(string) bool { return true }, now)
		if found.Others > 0 {
			for _, c := range n.Calls {
				o.waiting += c.To + " "
			}
		}
	}
	switch {
	case errors.Is(err, driver.ErrTakenOver):
		o.code = -1
	case errors.Is(err, driver.ErrPassedOn):
		o.code = -3
	case err != nil:
	case contended:
		o.code = 2
	case !c.tries() && c.script != "move":
		o.code = 1
	}
	for _, c := range n.Calls {
		switch c.What {
		case driver.Turn:
			o.message += turn(c.To, c.In)
		case driver.Offered:
			if o.offer = fmt.Sprint(c.To, "=", c.Token); c.Others {
				o.offer += "+"
			}
		}
	}
	o.q = string(r.Waiting())
	o.holder = sorted(o.holder)
	return o, ttl, room
}

// turn is the text of a call in an effect.
func turn(id string, in time.Duration) string { return fmt.Sprintf("%s in %v, ", id, in) }

// turns returns the lockers' reading of a message: of a list with its head, or else the message.
func turns(message string) (calls string) {
	free, text := 0, message
	if number, rest, _ := strings.Cut(message, ","); strings.HasPrefix(number, "*") {
		free, _ = strconv.Atoi(number[1:])
		text = rest
	}
	if strings.Contains(text, " ") {
		return message // the lockers have got other lists
	}
	all := driver.Waiters(text)
	for w := range all.All() {
		if c, called := all.Call(w.ID(), free); called {
			calls += turn(w.ID(), c.In)
		}
	}
	return calls
}

// list returns the entries of a list.
func list(q string) []string {
	return slices.DeleteFunc(strings.Split(q, ","), func(e string) bool { return e == "" })
}

func sorted(names string) string {
	all := strings.Split(names, ",")
	slices.Sort(all)
	return strings.Join(all, ",")
}

// found reads the reply of a script.
func (c asked) found(reply any, s seen) (o effect, ms, room int64, err error) {
	o.message, o.q, o.offer = turns(s.message), s.q, s.offer
	parts, _ := reply.([]any)
	n := numbers(parts)
	holder := ""
	if len(parts) > 0 {
		holder, _ = parts[0].(string)
	}
	single, isNumber := reply.(int64)
	switch try := c.tries(); {
	case c.script == "move" && isNumber && single <= 0:
		o.code = single
	case c.script == "move" && isNumber:
		o.granted, o.token = true, single
	case c.script == "move" && len(parts) == 2:
		o.granted, o.token, room = true, n[0], n[1]
	case try && isNumber:
		o.granted, o.token = true, single
	case c.script == "acquire" && len(parts) == 2:
		o.granted, o.token, room = true, n[0], n[1]
	case c.script == "line" && len(parts) == 3:
		o.granted, o.token, o.number, room = true, n[0], n[1], n[2]
	case c.script == "line" && len(parts) == 1:
		o.out = true
	case c.script == "line" && len(parts) == 4:
		o.holder, ms, o.listed, o.number = sorted(holder), n[1], n[2] == 1, n[3]
	case try && (len(parts) == 3 || len(parts) == 4):
		o.holder, ms, o.listed = sorted(holder), n[1], n[2] == 1
		if c.script == "enter" {
			o.full = n[3] == 1
		} else if len(parts) == 4 {
			o.token = n[3]
		}
	case !try && isNumber && single >= -1 && single <= 2:
		o.code = single
	case c.script == "release" && len(parts) == 2:
		o.code = 1
		for w := range driver.Waiters(holder).All() {
			o.waiting += w.ID() + " "
		}
	default:
		err = fmt.Errorf("%s: answer %v", c.script, reply)
	}
	return o, ms, room, err
}

// slack is how far the instants of Redis, in whole milliseconds, are from the instants of a
// record.
const slack = 8 * time.Millisecond

// agree says where the record and the scripts differ, or nothing.
func (c asked) agree(want, got effect, ttl time.Duration, ms, wantRoom, room int64, b time.Time) string {
	if c.script == "line" && !got.granted {
		want.token = 0 // that script does not tell what stood in the way
	}
	if c.script == "line" && got.out {
		want.number, want.listed, want.holder = 0, false, ""
	}
	if got.holder == "" && strings.Count(want.holder, ",") >= 16 {
		want.holder = "" // many holders are not named
	}
	refused := c.tries() && !got.granted && !got.out
	switch {
	case want != got:
		return fmt.Sprintf("the scripts do\n\t%+v; want\n\t%+v", got, want)
	case refused && c.owner == "": // such a caller asks again by itself
	case refused && c.kind().Place() && (ms > (ttl+slack).Milliseconds() || ms < 0):
		return fmt.Sprintf("to ask again in %d ms; want at most %v", ms, ttl)
	case refused && !c.kind().Place() && max(ms, ttl.Milliseconds())-min(ms, ttl.Milliseconds()) > slack.Milliseconds():
		return fmt.Sprintf("to ask again in %d ms; want %v", ms, ttl)
	case wantRoom > room, room != 0 && got.token < b.Add(-slack).UnixMicro():
		return fmt.Sprintf("%d tokens are never minted; want %d", room, wantRoom)
	}
	return ""
}

// numbers reads the elements of a reply that are numbers; the others are zero.
func numbers(parts []any) (n [4]int64) {
	for i, part := range parts[:min(len(parts), len(n))] {
		n[i], _ = part.(int64)
	}
	return n
}
