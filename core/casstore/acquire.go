package casstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
)

// Acquire implements [driver.Store]. A request for another kind than [driver.Exclusive]
// returns [driver.ErrConfig].
func (s *Store) Acquire(ctx context.Context, ask driver.AcquireRequest) (driver.Reply, error) {
	if err := s.Serves(driver.Hold{Kind: ask.Kind}); err != nil {
		return driver.Reply{}, err
	}
	type outcome struct {
		reply driver.Reply
		err   error
	}
	done := make(chan outcome) // without room: either the caller takes it, or Late does
	left := make(chan struct{})
	gone := ctx.Err() != nil // then nothing is sent
	begun := s.background(func() {
		o := outcome{err: driver.ErrNotReady}
		if !gone {
			o.reply, o.err = s.acquire(ask)
		}
		select {
		case done <- o:
		case <-left:
			ask.Late(o.reply, o.err)
		}
	})
	switch {
	case !begun:
		return driver.Reply{}, errClosed
	case gone:
		close(left)
		return driver.Reply{}, pending(ctx)
	}
	var alarm <-chan time.Time
	if !ask.Deadline.IsZero() {
		timer := time.NewTimer(time.Until(ask.Deadline))
		defer timer.Stop()
		alarm = timer.C
	}
	select {
	case o := <-done:
		return o.reply, o.err
	case <-ctx.Done():
	case <-alarm:
	}
	close(left)
	return driver.Reply{}, pending(ctx)
}

// pending is the error for a caller that leaves before the outcome is known.
func pending(ctx context.Context) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", driver.ErrPending, context.Cause(ctx))
	}
	return errNoAnswer
}

// claim is a request for a lock, on its way.
type claim struct {
	*Store
	tries
	ask   driver.AcquireRequest
	hold  *hold
	known bool     // the lock was ours before this request
	want  holding  // the value to write into the lock
	beat  string   // the beat that is read with the lock; empty: none
	void  Revision // of the process's void that was compared last
}

// rounds is how often a request looks at a lock that changes under its eyes, before it
// tells its caller to come again.
const rounds = 4

// acquire makes one try to take a lock.
func (s *Store) acquire(ask driver.AcquireRequest) (driver.Reply, error) {
	sent, lease := time.Now(), whole(ask.TTL)
	c := &claim{
		Store: s, tries: tries{store: s, deadline: sent.Add(max(patience*s.wait(), electionWait))}, ask: ask,
		want: holding{owner: ask.Owner, lease: lease, process: s.process, rest: string(ask.Rest)},
	}
	if end := ask.Deadline; !end.IsZero() && end.Before(c.deadline) {
		c.deadline = end.Add(-max(0, min(margin, end.Sub(sent)/10)))
	}
	c.hold, c.known = s.expect(ask.Key, ask.Owner, lease)
	defer s.asked(c.hold)
	var reply driver.Reply
	again, err := true, error(nil)
	for round := 0; again && round < rounds; {
		if reply, again, err = c.look(); errors.Is(err, ErrSettled) {
			reply, again, err = c.settle(err)
		}
		if c.unknown {
			s.doubt(c.hold, c.void)
		}
		if err == nil {
			round++
		}
	}
	reply.Sent, reply.Ambiguous = sent, c.unknown
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

// settle looks whether a transaction that has ended with [ErrSettled] has taken the lock.
// Nothing is on its way any more, so the look tells. It writes nothing: why may be that the
// server has no space.
func (c *claim) settle(why error) (reply driver.Reply, again bool, err error) {
	unknown := c.unknown // a look takes no lock
	for again = true; again; {
		var answer Answer
		if answer, _, again, err = c.send(Txn{Read: []string{c.names.lock(c.ask.Key)}}); err != nil {
			continue
		}
		c.unknown = unknown
		if as, err := holder(answer.Read[0]); err == nil && as.owner == c.ask.Owner {
			return c.granted(answer.Read[0].Revision, as), false, nil
		}
		return reply, false, why
	}
	c.unknown = true
	return reply, false, why
}

// look makes one look at the lock, and takes it if that is possible. again says that the
// lock has changed meanwhile, or after an error that there is time for another look.
func (c *claim) look() (reply driver.Reply, again bool, err error) {
	name := c.names.lock(c.ask.Key)
	answer, received, again, err := c.take(nil, Condition{Name: name})
	if err != nil {
		return reply, again, err
	}
	if answer.Done {
		return c.granted(answer.Written[0], c.want), false, nil
	}
	return c.found(answer, received)
}

// take sends the transaction that takes the lock under some conditions, unless the release
// of its owner has begun. ends are the operations that end the hold of another owner.
func (c *claim) take(ends []Op, conditions ...Condition) (answer Answer, received time.Time, again bool, err error) {
	lock, void := c.names.lock(c.ask.Key), c.names.void(c.process)
	if c.void, err = c.unreleased(c.hold); err != nil {
		return answer, received, false, err
	}
	txn := Txn{
		If:   append(conditions, Condition{void, c.void}),
		Then: append(append([]Op{{Name: lock, Value: c.want.String()}}, c.beats(c.want.lease)...), ends...),
		Else: []string{lock, void},
	}
	if c.ask.Waiter != "" {
		waiter := c.names.waiter(c.ask.Key, string(c.ask.Waiter))
		txn.Else = append(txn.Else, waiter)
		if c.waits(c.ask.Key, string(c.ask.Waiter)) {
			txn.Then = append(txn.Then, Op{Name: waiter, Delete: true})
		}
	}
	if c.beat = c.lastBeat(c.ask.Key); c.beat != "" {
		txn.Else = append(txn.Else, c.beat)
	}
	answer, received, again, err = c.send(txn)
	if err == nil && !answer.Done {
		c.sawVoid(c.void, answer.Read[1].Revision)
	}
	return answer, received, again, err
}

// granted notes that the lock is ours.
func (c *claim) granted(at Revision, as holding) driver.Reply {
	if as.granted == 0 {
		as.granted = at.Number
	}
	c.own(c.hold, at, as)
	c.wrote(c.want.lease)
	c.leaves(c.ask.Key, string(c.ask.Waiter))
	return driver.Reply{Granted: true, Token: as.token(), Room: tokens - 1}
}

// found is what a look does that did not take the lock.
func (c *claim) found(answer Answer, received time.Time) (reply driver.Reply, again bool, err error) {
	lock := answer.Read[0]
	if !lock.There() {
		return reply, true, nil // it was released since, or the void has changed
	}
	other, err := holder(lock)
	switch {
	case err != nil:
		return reply, false, err
	case other.owner == c.ask.Owner:
		return c.granted(lock.Revision, other), false, nil
	}
	c.sawLock(c.ask.Key, lock.Revision, other, received)
	beat := c.names.beat(other.process, other.lease)
	if beat == c.beat {
		c.sawBeat(beat, answer.Read[len(answer.Read)-1].Revision, received)
	}
	reply.Holder = other.owner
	if c.ask.Waiter != "" {
		// An earlier place may be on its way out, because its callers have left.
		listed := answer.Read[2].Revision.Number > other.granted && c.waits(c.ask.Key, string(c.ask.Waiter))
		reply.Listed = listed || slices.Contains(strings.Split(other.rest, ","), string(c.ask.Waiter))
	}
	own, mine := c.remains(other)
	if !mine && beat != c.beat || c.ask.Waiter != "" && !reply.Listed {
		again, err := c.enter(lock, beat, &reply)
		if again || err != nil {
			return reply, again, err
		}
	}
	if mine {
		reply.TTL = own
		return reply, false, nil
	}
	left, last := c.silent(c.ask.Key, lock.Revision, beat, other.lease)
	if left <= 0 {
		return c.takeOver(lock, other, last)
	}
	reply.TTL, reply.Note = min(left, other.lease), c.stranger(c.ask.Key, beat, left)
	return reply, false, nil
}

// enter puts the locker into the list of a lock that is held, and reads the holder's beat.
func (c *claim) enter(lock Entry, beat string, reply *driver.Reply) (again bool, err error) {
	txn := Txn{If: []Condition{{lock.Name, lock.Revision}}, Read: []string{beat}}
	defer func(unknown bool) { c.unknown = unknown }(c.unknown) // it takes no lock
	if c.ask.Waiter != "" && !reply.Listed {
		waiter := Op{Name: c.names.waiter(c.ask.Key, string(c.ask.Waiter)), Value: c.process}
		txn.Then = append([]Op{waiter}, c.beats(c.want.lease)...)
		c.enters(c.ask.Key, string(c.ask.Waiter))
	}
	answer, received, again, err := c.send(txn)
	switch {
	case err != nil:
		return again, err
	case !answer.Done:
		return true, nil
	}
	c.sawBeat(beat, answer.Read[0].Revision, received)
	if len(txn.Then) > 0 {
		c.wrote(c.want.lease)
		c.entered(c.ask.Key, string(c.ask.Waiter), answer.Written[0])
		reply.Listed = true
	}
	return false, nil
}

// takeOver takes the lock of a holder of which nothing was heard for its lease. Both the
// lock and the beat must be as they were when that time began, also if there is no beat:
// its first would be the sign of life.
func (c *claim) takeOver(lock Entry, of holding, last Revision) (reply driver.Reply, again bool, err error) {
	beat := c.names.beat(of.process, of.lease)
	answer, _, again, err := c.take(of.ends(c.names, c.ask.Key), Condition{lock.Name, lock.Revision}, Condition{beat, last})
	switch {
	case err != nil:
		return reply, again, err
	case answer.Done:
		return c.granted(answer.Written[0], c.want), false, nil
	}
	return reply, true, nil
}
