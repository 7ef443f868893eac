package rediswire

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/ident"
	"github.com/interlock-go/interlock/core/internal/inflight"
)

//go:embed lua/acquire.lua
var acquireSource string

//go:embed lua/renew.lua
var renewSource string

//go:embed lua/release.lua
var releaseSource string

//go:embed lua/decline.lua
var declineSource string

var (
	acquireScript = forSeveral("acquire", acquireSource)
	renewScript   = forSeveral("renew", renewSource)
	releaseScript = forSeveral("release", releaseSource)
	declineScript = NewScript(complete(declineSource, ""))
)

// fenceTime is how much longer than its lease the last token of a key is
// remembered. It covers clocks that disagree by that much after a failover.
const fenceTime = time.Minute

var _ driver.Store = (*Store)(nil)

// acquire is a request to take a lock, with room for its arguments. It is used
// again and again.
type acquire struct {
	Request
	ask  driver.AcquireRequest
	keys [2]string
	ms   [2]int64 // lease, fence's
	// Of a place: how many owners may have one, and how many tokens a grant makes.
	atMost, tokens int64
	waiter         string
	// The last locker that waits long, and its text for acquire.lua.
	patient, patiently string
	room               [callArgs + 9]any
}

// Acquire implements [driver.Store].
func (s *Store) Acquire(ctx context.Context, ask driver.AcquireRequest) (driver.Reply, error) {
	switch {
	case ask.From != "":
		return s.move(ctx, ask)
	case ask.Line != driver.InTurn:
		return s.askInLine(ctx, ask)
	}
	place := ask.Kind.Place()
	var atMost, tokens int64
	if place {
		var err error
		if atMost, tokens, err = placesOf(&ask); err != nil {
			return driver.Reply{}, err
		}
	}
	r, _ := s.acquires.Get().(*acquire)
	if r == nil {
		r = &acquire{}
		r.Late = func() { r.ask.Late(r.reply()) }
	}
	r.ask = ask
	r.keys[0], r.keys[1] = s.names.with(ask.Key, fenceSuffix)
	r.ms = [2]int64{clock.Ceil(ask.TTL, time.Millisecond), clock.Ceil(ask.TTL+fenceTime, time.Millisecond)}
	if place {
		r.atMost, r.tokens = atMost, tokens
		r.Make(s, enterScript, r.keys[0], r.room[:]).Keys(&r.keys[0], &r.keys[1]).
			Args(&r.ask.Owner, &r.ms[0], &r.ms[1], &r.atMost, (*string)(&r.ask.Waiter), &r.tokens)
	} else {
		switch r.waiter = string(ask.Waiter); {
		case r.waiter == "":
		case ask.Offer != 0:
			r.waiter += "=" + strconv.FormatInt(ask.Offer, 10) + "@" + strconv.FormatInt(clock.Ceil(min(max(ask.Left, 0), longest), time.Millisecond), 10)
		case ask.Left <= 0:
		case ask.Left < longest:
			r.waiter += "@" + strconv.FormatInt(clock.Ceil(ask.Left, time.Millisecond), 10)
		default:
			// A request is used again, mostly for the same locker and a long wait.
			if r.patient != string(ask.Waiter) {
				r.patient, r.patiently = string(ask.Waiter), string(ask.Waiter)+"@"+strconv.FormatInt(clock.Ceil(longest, time.Millisecond), 10)
			}
			r.waiter = r.patiently
		}
		r.Make(s, acquireScript, r.keys[0], r.room[:]).Keys(&r.keys[0], &r.keys[1]).
			Args(&r.ask.Owner, &r.ms[0], &r.ms[1], &r.waiter)
		r.common = 3
	}
	r.Deadline, r.Write, r.Asks = ask.Deadline, true, true
	if !r.Do(ctx, ask.Deadline) {
		return driver.Reply{}, inflight.Pending(ctx)
	}
	s.noteTrip(&r.Request)
	rep, err := r.reply()
	r.ask, r.waiter = driver.AcquireRequest{}, ""
	s.acquires.Put(r)
	return rep, err
}

// reply makes the caller's reply from the script's.
func (r *acquire) reply() (driver.Reply, error) {
	rep := driver.Reply{Sent: r.Sent, Ambiguous: r.Ambiguous}
	if r.Err != nil {
		return rep, r.failure(r.ask.Key)
	}
	list, isList := r.Val.([]any)
	token, granted := r.Val.(int64)
	var room int64
	if len(list) == 2 {
		n := numbers(list)
		token, room, granted = n[0], n[1], n[1] > 0
	}
	// The other scripts for locks answer -2 to 2, and none of that is a token: should
	// replies ever get out of step, it must not look like a grant.
	switch granted = granted && token > 2; {
	case granted && r.Unacked:
		rep.Ambiguous = true // the caller does not have it, the server says otherwise
		return rep, driver.ErrNotReplicated
	case granted:
		rep.Granted, rep.Token, rep.Room = true, token, room
		return rep, nil
	case isList && r.refused(list, &rep):
		return rep, nil
	}
	rep.Ambiguous = true // what that server has done is unknown
	return rep, Wrap(ErrReply)
}

// refused reads the list that a script returned for a refusal. Its fourth element is the token
// that stood in the way, if there is one, or for places whether they are full. It reports whether
// the list is one.
func (r *acquire) refused(list []any, rep *driver.Reply) bool {
	n := numbers(list)
	holder, ok := "", false
	if len(list) == 3 || len(list) == 4 {
		holder, ok = list[0].(string)
	}
	place, more := r.ask.Kind.Place(), len(list) == 4
	switch {
	case !ok || n[2] != 0 && n[2] != 1:
		return false
	case place && n[3] != 0 && n[3] != 1, !place && more && n[3] <= 2: // see reply
		return false
	case more && !place:
		rep.Token = n[3]
	}
	left, ok := list[1].(int64)
	rep.Holder, rep.Listed, rep.Full = holder, n[2] == 1, place && n[3] == 1
	rep.TTL = time.Duration(left) * time.Millisecond // PTTL: -1 for a key without expiry
	return ok
}

// longest is from how long on it makes no difference to acquire.lua for how long a
// caller still waits: its barrier is shorter.
const longest = 1500 * time.Millisecond

// failure is the error of a request for a lock that failed. It logs, at most once a minute, that the
// lock's key holds a value that is no lock. The condition ends only when that value is removed.
func (r *Request) failure(key string) error {
	err := Wrap(r.Err)
	if errors.Is(err, driver.ErrKeyOccupied) && r.store.occupied.Count(time.Now()) > 0 {
		r.store.log.Error("interlock: a lock cannot be taken, since its key in Redis has a value of another type",
			"key_hash", ident.Hash(key))
	}
	return err
}

// release is a request to give up a lock, with room for its arguments. It is used again
// and again.
type release struct {
	Request
	ask    driver.ReleaseRequest
	names  [2]string // lock, fence
	ms     int64     // fence's
	atMost int64     // of a place
	room   [callArgs + 8]any
}

// Release implements [driver.Store].
func (s *Store) Release(ctx context.Context, ask driver.ReleaseRequest) (found driver.Waiting, err error) {
	if ask.Revoked > 0 {
		return s.revoke(ctx, ask)
	}
	r, _ := s.releases.Get().(*release)
	if r == nil {
		r = &release{}
	}
	r.ask = ask
	script, place := releaseScript, ask.Kind.Place()
	if place {
		script = leaveScript
		// The script takes it that every locker wants a place; the locker says otherwise
		// when it asks.
		r.ask.Waiter = ask.Waiter.Exclusive()
	}
	r.names[0], r.names[1] = s.names.with(ask.Key, fenceSuffix)
	r.Make(s, script, r.names[0], r.room[:]).Keys(&r.names[0])
	if ask.Remember {
		r.Keys(&r.names[1])
	}
	r.Args(&r.ask.Owner, s.Publish(), (*string)(&r.ask.Waiter))
	if !place && !ask.Remember {
		r.common = 2
	}
	if place {
		r.atMost = int64(ask.AtMost)
		r.Args(&r.atMost)
	}
	if ask.Remember {
		r.ms = clock.Ceil(ask.TTL+fenceTime, time.Millisecond)
		r.Args(&r.ask.Token, &r.ms)
	}
	r.Deadline, r.Stubborn, r.Least = ask.Deadline, true, 2
	r.Do(context.Background(), time.Time{})     // the request ends by its own bounds
	if r.Err != nil || r.Val != any(int64(1)) { // else nothing is to be said
		found, err = s.released(r)
	}
	r.ask = driver.ReleaseRequest{}
	s.releases.Put(r)
	return found, err
}

// RoundTrip implements [driver.Turns].
func (s *Store) RoundTrip() time.Duration { return s.trips.Least() }

// Decline implements [driver.Turns].
func (s *Store) Decline(ctx context.Context, key, waiter string) error {
	r := new(struct {
		Request
		lock, waiter string
		room         [callArgs + 3]any
	})
	r.lock, r.waiter = s.names.lock(key), waiter
	r.Make(s, declineScript, r.lock, r.room[:]).Keys(&r.lock).Args(&r.waiter, s.Publish())
	if r.Start(); !r.Wait(ctx, time.Time{}) {
		return inflight.Pending(ctx)
	}
	switch n, err := code(r.Val, 2); {
	case r.Ambiguous && r.Err != nil:
		return Wrap(r.Err)
	case r.Ambiguous:
		return errRepeated
	case r.Err == nil && err == nil && n == 2:
		s.SayMute()
	}
	return nil
}

// errRepeated says that a try got no answer, and may be carried out after the try that got one.
var errRepeated = fmt.Errorf("%w: one of the tries had no answer", driver.ErrUnavailable)

// released reads a reply of the script other than 1.
func (s *Store) released(r *release) (found driver.Waiting, err error) {
	if r.Err != nil {
		return found, Wrap(r.Err)
	}
	n, err := code(r.Val, 2)
	switch {
	case err != nil:
		if w, ok := foundIn(r.Val, r.ask.Waiter); ok {
			return w, nil
		}
		return found, Wrap(err)
	case n <= 0 && !r.Ambiguous:
		err := notOwner(n)
		s.revoked(r.ask.Key, r.ask.Owner, err)
		return found, err
	case n == 2:
		s.SayMute()
	}
	// "Not the owner" after an earlier try with a lost reply: that try released it.
	return found, nil
}

// SayMute logs, once, that an announcement was refused. The release or grant itself has
// happened.
func (s *Store) SayMute() {
	if !s.mute.Swap(true) {
		s.log.Warn("interlock: Redis refused to announce what was released or completed: waiting processes find it late, by asking; " +
			"the user of the connection needs PUBLISH (on a Cluster SPUBLISH) on " + s.names.prefix + ":*")
	}
}

// foundIn reads what a release has found: the lockers that were called, and how many wait, among them own.
func foundIn(val any, own driver.Waiter) (w driver.Waiting, ok bool) {
	list, _ := val.([]any)
	if len(list) != 2 {
		return w, false
	}
	called, isText := list[0].(string)
	n, isNumber := list[1].(int64)
	w = driver.Waiters(called).Found(own)
	if own != "" {
		n--
	}
	w.Others = max(w.Others, int(n))
	return w, isText && isNumber
}

// listed reads the list of waiting lockers where a script returned one.
func listed(val any) (waiting driver.Waiters, ok bool) {
	list, _ := val.([]any)
	if len(list) != 1 {
		return "", false
	}
	text, ok := list[0].(string)
	return driver.Waiters(text), ok
}

// code reads the number that a script returns which renews, releases, declines or withdraws:
// -2 to most. A token is no such number, should replies ever get out of step.
func code(val any, most int64) (int64, error) {
	n, ok := val.(int64)
	if !ok || n < -2 || n > most {
		return 0, ErrReply
	}
	return n, nil
}

// notOwner makes the error for the answer of renew.lua and release.lua, and of stay.lua
// and leave.lua, to an owner that does not hold the lock.
func notOwner(n int64) error {
	switch n {
	case -1:
		return driver.ErrTakenOver
	case -2:
		return driver.ErrRevoked
	}
	return driver.ErrDeleted
}

// Renew implements [driver.Store]. It renews leases on different servers in parallel,
// and leases on one server in pipelines.
func (s *Store) Renew(ctx context.Context, batch []driver.Renewal, done func(i int, contended bool, err error)) {
	if len(batch) == 0 {
		return
	}
	s.renew(ctx, batch[0].Asked, len(batch), func(i int, r *Renewal) {
		script := renewScript
		if batch[i].Kind.Place() {
			script = stayScript
		}
		r.Ask(script, s.names.lock(batch[i].Key), batch[i].Owner, batch[i].TTL) // 0 only looks
	}, func(i int, contended bool, err error) {
		s.revoked(batch[i].Key, batch[i].Owner, err)
		done(i, contended, err)
	})
}

// renew is [Store.Round] for leases of locks. Renewals that a caller waits for, asked,
// are among the other requests.
func (s *Store) renew(
	ctx context.Context, asked bool, n int, ask func(i int, r *Renewal), done func(i int, contended bool, err error),
) {
	w := &s.renewals
	if asked {
		w = &s.requests
	}
	s.round(ctx, w, n, ask, func(i int, r *Request) {
		contended, err := r.renewed()
		done(i, contended, err)
	})
}

// renewed reads the result of the script for a lease.
func (r *Request) renewed() (contended bool, err error) {
	if r.Err != nil {
		return false, Wrap(r.Err)
	}
	switch n, err := code(r.Val, 2); {
	case err != nil:
		return false, Wrap(err)
	case n <= 0:
		return false, notOwner(n)
	case r.Unacked:
		return n == 2, driver.ErrNotReplicated
	default:
		return n == 2, nil
	}
}
