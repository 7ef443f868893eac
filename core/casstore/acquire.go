package casstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/keystate"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/inflight"
)

// Acquire implements [driver.Store].
func (s *Store) Acquire(ctx context.Context, ask driver.AcquireRequest) (driver.Reply, error) {
	if err := keystate.Check(&ask); err != nil {
		return driver.Reply{}, err
	}
	type outcome struct {
		reply driver.Reply
		err   error
	}
	var caller inflight.Caller
	done := make(chan outcome, 1)
	if ctx.Err() != nil {
		caller.Leave() // and nothing is sent
	}
	if !s.background(func() {
		o := outcome{err: driver.ErrNotReady}
		if caller.Waits() {
			o.reply, o.err = s.acquire(ask)
		}
		if caller.Serve() {
			done <- o
			return
		}
		ask.Late(o.reply, o.err)
	}) {
		return driver.Reply{}, errClosed
	}
	if !caller.Left() {
		if o, ok := inflight.Wait(ctx, ask.Deadline, &caller, done); ok {
			return o.reply, o.err
		}
	}
	return driver.Reply{}, inflight.Pending(ctx)
}

// claim is a request for a lock, on its way.
type claim struct {
	*Store
	tries
	ask   driver.AcquireRequest
	hold  *hold
	known bool     // the lock was ours before this request
	void  Revision // of the process's void that was compared last

	at       found     // the key as it was found last, or as a guess
	received time.Time // when that was received; zero: it is a guess
	beats    []string  // to read with the key
	looked   bool      // at the beats of the holders
	listed   bool      // the places were listed, or all of a few permits were read
	missed   int       // how often others have taken the place that it tried
	entered  bool      // the locker came into line
	lined    bool      // and holders have not learnt of that
	resolved bool      // the place that was tried was looked at, after an unknown outcome
	pass     func()    // lets the next request of this process go on; nil: it has collided with none
}

// rounds is how often a request looks at a lock that changes under its eyes, before it
// tells its caller to come again.
const rounds = 64

// acquire makes one try to take a lock.
func (s *Store) acquire(ask driver.AcquireRequest) (driver.Reply, error) {
	sent, lease := time.Now(), whole(ask.TTL)
	c := &claim{Store: s, tries: tries{store: s, deadline: sent.Add(max(patience*s.wait(), electionWait))}, ask: ask}
	if end := ask.Deadline; !end.IsZero() && end.Before(c.deadline) {
		c.deadline = end.Add(-max(0, min(margin, end.Sub(sent)/10)))
	}
	c.sure = ask.Kind.Place()
	c.ask.Above = 0 // tokens grow with the revisions of the server
	s.comesAgain(ask.Key, ask.Waiter)
	c.hold, c.known = s.expect(ask.Key, ask.Owner, ask.Kind, lease)
	defer s.asked(c.hold)
	s.lists(ask.Key, ask.Waiter, true)
	var reply driver.Reply
	again, err := true, error(nil)
	defer func() {
		if c.pass != nil {
			c.pass()
		}
	}()
	if ask.Kind == driver.Permit {
		c.pass = s.oneByOne(ask.Key)
	}
	c.guess()
	for round := 0; again && round < rounds; {
		look := c.look
		if ask.Kind.Place() {
			look = c.lookPlace
		}
		if reply, again, err = look(); errors.Is(err, ErrSettled) {
			reply, again, err = c.settle(err)
		}
		if c.unknown {
			s.doubt(c.hold, c.void)
		}
		if err == nil {
			round++
		}
		if !again && err == nil && c.staysFor(reply) {
			again, err = c.read()
			continue
		}
		collided := c.collided
		if c.collided = false; !collided {
			continue
		}
		if again && err == nil && c.pass == nil {
			c.pass = s.oneByOne(ask.Key)
			if last := s.lastSeen(ask.Key); last.lock.Revision.Number > c.at.lock.Revision.Number {
				c.at = last // the request before it has written that
			}
		} else if again && err == nil {
			c.collide(round)
		}
	}
	if reply.Sent, reply.Ambiguous = sent, c.unknown; again {
		reply.Granted = false // others have changed the lock all the time
	}
	if !reply.Listed {
		s.lists(ask.Key, ask.Waiter, false)
	}
	if !reply.Granted && !c.known {
		s.missed(c.hold)
	}
	if (errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrNotReady)) && !errors.Is(err, errReleased) {
		s.Warn("a lock could not be asked for", err)
	}
	return reply, err
}

// whole is a lease in whole milliseconds. A longer one than any that an option takes counts as
// the longest, so that no sum of two overflows.
func whole(ttl time.Duration) time.Duration {
	return time.Duration(max(1, clock.Ceil(min(ttl, clock.LongestKept), time.Millisecond))) * time.Millisecond
}

// collide pauses after others have changed an entry that a transaction compares. So many requests that
// come at once do not go on in step.
func (t *tries) collide(round int) {
	pause := time.NewTimer(rand.N(time.Duration(round)*max(t.store.trips.Least(), time.Microsecond)) + 1)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-t.store.done.Done():
	}
}

// guess begins with the key as it was seen last if the locker was called, has to come into line, or
// wants a place; and else with a lock that is free: then one transaction takes it.
func (c *claim) guess() {
	last, called := c.lastSeen(c.ask.Key), c.calledTo(c.ask.Key)
	if c.ask.Kind.Place() {
		c.at = last
	}
	if c.ask.Waiter == "" {
		return
	}
	if called.lock.There() {
		last = called
	}
	v, err := c.open(c.ask.Key, last, time.Time{})
	if err != nil {
		return
	}
	c.beats = v.beats()
	if reply, _ := v.rec.Acquire(c.ask, v.now); called.lock.There() || last.lock.There() && (reply.Granted || !v.listed(c.ask.Waiter)) {
		c.at = last
	}
}

// look opens the key as it was found, carries out the rules, and writes their changes. again says
// that the key has changed meanwhile, or after an error that there is time for another look.
func (c *claim) look() (reply driver.Reply, again bool, err error) {
	v, err := c.open(c.ask.Key, c.at, c.received)
	if err != nil {
		return reply, false, err
	}
	switch dead := v.dead(true); {
	case v.Places && c.missed > 0 && c.comesFirst(v):
		return c.lineUp(v)
	case v.Places && !(v.at.allTaken && c.listed):
		return afresh(c.listPlaces())
	case len(dead) > 0:
		again, err = c.bury(v, dead)
		return reply, again, err
	}
	v.own, v.first = c.ask.Waiter.ID(), c.ask.Line == driver.Newest
	lease := whole(c.ask.TTL)
	want := held{Owner: c.ask.Owner, Process: c.process, Lease: lease.Milliseconds()}
	var notices keystate.Notices
	if c.ask.From == "" {
		reply, notices = v.rec.Acquire(c.ask, v.now)
	} else if reply, notices, err = v.rec.Move(c.ask, v.now); err != nil && c.received.IsZero() {
		return afresh(c.read())
	} else if err != nil {
		again, err = c.refuses(err)
		return driver.Reply{}, again, err
	}
	if c.lined && !reply.Granted {
		c.lined = false
		notices.Calls = append(notices.Calls, c.hints(v)...)
	}
	if as, ours := v.hold(c.ask.Owner); ours && reply.Granted {
		if c.received.IsZero() {
			return afresh(c.read())
		}
		return c.granted(as, reply), false, nil
	}
	switch {
	case !reply.Out:
	case c.received.IsZero():
		return afresh(c.read())
	default:
		return reply, false, nil // turns that have ended meanwhile are for the next request to write
	}
	if !reply.Granted {
		want = held{}
	}
	txn := v.write(notices, want, !reply.Granted)
	txn.Then = append(txn.Then, c.noting(c.ask.Key, c.ask.From, notices)...)
	switch {
	case v.unsure:
		return afresh(c.list())
	case reply.Granted:
		return c.take(v, txn, want, reply)
	case c.missed > 1 && v.listed(c.ask.Waiter): // others change the lock all the time, and their releases see the line
		reply = v.refusal(reply)
		reply.TTL = min(reply.TTL, callsLate+4*c.trips.Least())
		return reply, false, nil
	case len(txn.Then) > 0:
		return c.enter(v, txn, reply)
	}
	if c.beats = v.beats(); c.received.IsZero() || len(c.beats) > 0 && !c.looked {
		c.looked = !c.received.IsZero()
		again, err = c.read()
		return reply, again, err
	}
	return v.refusal(reply), false, nil
}

// take sends the transaction that takes the lock, unless the release of its owner has begun.
func (c *claim) take(v *view, txn Txn, want held, granted driver.Reply) (reply driver.Reply, again bool, err error) {
	if c.void, err = c.unreleased(c.hold); err != nil {
		return reply, false, err
	}
	void := c.names.void(c.process)
	txn.If = append(txn.If, Condition{void, c.void})
	txn.Then = append(txn.Then, c.beat(whole(c.ask.TTL))...)
	if v.waits() {
		txn.Read = []string{c.names.line(c.ask.Key)} // the release calls the first, without a look
	}
	for _, condition := range txn.If { // of a holder that is silent
		if strings.HasPrefix(condition.Name, c.names.beats()) && !slices.Contains(c.beats, condition.Name) {
			c.beats = append(c.beats, condition.Name)
		}
	}
	txn.Else = append(c.reads(), void)
	answer, received, again, err := c.send(txn)
	switch {
	case err != nil:
		return reply, again, err
	case !answer.Done:
		if v.at.lock.There() {
			c.ask.Waiter = c.patient(c.ask.Waiter, c.ask.Kind)
		}
		c.sawVoid(c.void, answer.Read[len(answer.Read)-1].Revision)
		if c.learn(answer.Read, received); v.stale(answer) {
			return afresh(c.list())
		}
		return reply, true, nil
	}
	c.at = c.came(c.ask.Key, v.at, txn, answer)
	c.at.lock = Entry{Name: c.names.lock(c.ask.Key), Value: txn.Then[0].Value, Revision: answer.Written[0]}
	if len(txn.Read) > 0 && answer.Read[0].Revision != c.at.line.Revision {
		c.at.line, c.at.full = answer.Read[0], false
	}
	if v.at.lock.There() || v.waits() || c.ask.Kind.Place() { // others know the key, or may use it together
		c.wroteLock(c.ask.Key, c.at, v, append(v.holds, want), received)
	}
	want.Granted = answer.Written[0].Number
	return c.granted(want, granted), false, nil
}

// reads are the names of the entries that a request looks at.
func (c *claim) reads() []string {
	names := append([]string{c.names.lock(c.ask.Key), c.names.line(c.ask.Key)}, c.beats...)
	if c.ask.Kind.Place() || c.listed {
		names = append(names, c.names.taking(c.ask.Key))
	}
	for i := range c.few() {
		names = append(names, c.names.place(c.ask.Key, strconv.Itoa(i)))
	}
	if tried := c.hold.tried.Name; tried != "" && !slices.Contains(names, tried) {
		names = append(names, tried)
	}
	return names
}

// learn takes these entries out of an answer.
func (c *claim) learn(read []Entry, received time.Time) {
	c.at, c.received = c.note(c.ask.Key, c.at, read, received), received
	c.listed = c.listed || c.few() > 0
}

// read looks at the key.
func (c *claim) read() (again bool, err error) {
	answer, received, again, err := c.send(Txn{Read: c.reads()})
	if err == nil {
		c.learn(answer.Read, received)
	}
	return again || err == nil, err
}

// list looks at the line of the key.
func (c *claim) list() (again bool, err error) {
	c.at, again, err = c.tries.list(c.ask.Key, c.at)
	return again, err
}

// afresh has a request go on with the key as it was looked at now.
func afresh(again bool, err error) (driver.Reply, bool, error) { return driver.Reply{}, again, err }

// granted notes that the lock is ours, and completes the reply.
func (c *claim) granted(as held, reply driver.Reply) driver.Reply {
	c.own(c.hold, c.at, as)
	c.wrote(as.lease())
	if reply.Token, reply.Room = as.token(), 0; !c.ask.Kind.Place() {
		reply.Room = tokens - 1
	}
	return reply
}
