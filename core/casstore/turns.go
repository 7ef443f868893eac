package casstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/keystate"
)

// callsLate is how much later than a reply a call may come, without the others being kept waiting: it
// passes through the watch of a server, and each process has many calls to look at.
const callsLate = 30 * time.Millisecond

// RoundTrip implements [driver.Turns].
func (s *Store) RoundTrip() time.Duration {
	trip := s.trips.Least()
	if trip > 0 {
		trip += callsLate
	}
	return trip
}

// Space implements [driver.Turns]. The server is not in it: all processes have one and the same.
func (s *Store) Space() string { return fmt.Sprintf("consensus %q", s.names.prefix) }

// Stand implements [driver.Turns].
func (s *Store) Stand(ctx context.Context, ask driver.AcquireRequest) (reply driver.Reply, err error) {
	s.comesAgain(ask.Key, ask.Waiter)
	s.lists(ask.Key, ask.Waiter, true)
	err = s.carry(ctx, ask.Key, s.lastSeen(ask.Key), func(v *view) (n keystate.Notices) {
		v.own, v.first = ask.Waiter.ID(), ask.Line == driver.Newest
		reply, n = v.rec.Stand(ask, v.now)
		return n
	})
	if err != nil || !reply.Listed {
		s.lists(ask.Key, ask.Waiter, false)
	}
	return reply, err
}

// change carries a rule out on a key that it takes no lock of.
type change struct {
	*Store
	tries
	key      string
	rule     func(v *view) keystate.Notices
	at       found
	received time.Time // zero: at was seen earlier
}

// carry carries a rule out on a key that was found so, until it is written or nothing is to be written. An error that is not
// [driver.ErrNotReady] says that it may be carried out later.
func (s *Store) carry(ctx context.Context, key string, at found, rule func(v *view) keystate.Notices) (err error) {
	c := &change{Store: s, key: key, rule: rule, at: at}
	c.tries = tries{store: s, deadline: time.Now().Add(patience * s.wait()), base: ctx}
	if end, ok := ctx.Deadline(); ok {
		c.deadline = end
	}
	for again := true; again; {
		again, err = c.round()
	}
	if err != nil && !c.unknown {
		err = fmt.Errorf("%w: %w", driver.ErrNotReady, err)
	}
	return err
}

// round makes one try.
func (c *change) round() (again bool, err error) {
	v, err := c.open(c.key, c.at, c.received)
	if err != nil {
		return false, err
	}
	txn := v.write(c.rule(v), held{}, false)
	if v.unsure {
		c.at, again, err = c.list(c.key, c.at)
		return again, err
	}
	switch {
	case len(txn.Then) > 0:
		txn.Else = v.looksAt(txn)
	case !c.received.IsZero():
		return false, nil
	default:
		txn = Txn{Read: v.looksAt(txn)}
	}
	answer, received, again, err := c.send(txn)
	switch {
	case err != nil:
		return again, err
	case len(txn.Then) > 0 && answer.Done:
		c.noteWritten(v, txn, answer, received)
		return false, nil
	}
	if c.at, c.received = v.learn(txn, answer, received), received; v.theirs || v.stale(answer) {
		c.at, again, err = c.list(c.key, c.at)
		return again, err
	}
	return true, nil
}

// noteWritten notes the entries that a transaction has written, and has the next lockers called if the first does
// not come.
func (s *Store) noteWritten(v *view, txn Txn, answer Answer, received time.Time) {
	now := s.came(v.key, v.at, txn, answer)
	for i, op := range txn.Then {
		e := Entry{Name: op.Name, Value: op.Value, Revision: answer.Written[i]}
		switch op.Name {
		case s.names.lock(v.key):
			now.lock = e
		case s.names.line(v.key):
			now.line = e
		}
	}
	if now.line.Revision != v.at.line.Revision {
		now.full = false
	}
	s.wroteLock(v.key, now, v, v.holds, received)
	next, err := s.open(v.key, now, time.Time{})
	if err != nil {
		return
	}
	if void := v.at.come; !now.lock.There() && len(void) > batch {
		s.background(func() { s.clear(void[batch:]) })
	}
	if now.lock != v.at.lock && next.rec.Reserved(next.now) {
		s.guard(next, 1)
	}
}

// clear deletes void entries of lockers that were left when a transaction had no room for more. If it fails, they
// stay until their process dies: they are of no lock.
func (s *Store) clear(void []Entry) {
	t := tries{store: s, deadline: time.Now().Add(s.wait())}
	for some := range slices.Chunk(void, batch) {
		var txn Txn
		for _, e := range some {
			txn.If = append(txn.If, Condition{e.Name, e.Revision}) // else it has come again
			txn.Then = append(txn.Then, Op{Name: e.Name, Delete: true})
		}
		_, _, _, _ = t.send(txn)
	}
}

// Decline implements [driver.Turns].
func (s *Store) Decline(ctx context.Context, key, waiter string) error {
	return s.decline(ctx, key, waiter, s.lastSeen(key))
}

func (s *Store) decline(ctx context.Context, key, waiter string, at found) error {
	s.lists(key, driver.Waiter(waiter), false)
	for _, h := range at.taken {
		if h.For != "" && h.For.ID() == waiter {
			s.passOn(key, h)
		}
	}
	err := s.leave(ctx, key, waiter, at)
	if s.leftLine(key, waiter, err != nil); errors.Is(err, driver.ErrNotReady) {
		return nil // nothing is on its way any more
	}
	return err
}

// leave takes a locker out of the line.
func (s *Store) leave(ctx context.Context, key, waiter string, at found) error {
	return s.carry(ctx, key, at, func(v *view) keystate.Notices {
		v.own = waiter
		return v.rec.Decline(waiter, v.now)
	})
}

// guard calls the next lockers in line, one after the other, for as long as the lock stays reserved: the
// first may have died. No other process is awake. If this process dies as well, a locker looks after a part of the
// lease, as for a holder that does not release.
func (s *Store) guard(v *view, turn int) {
	line := v.line.since(v.gone)
	pause := s.trips.Least()
	for i, w := range line[:min(turn, len(line), driver.KeptFor)] {
		if pause += w.Name.Patience(); i == 0 && w.Name.TakesOffers() {
			pause = max(pause, driver.OfferLasts+s.trips.Least())
		}
	}
	time.AfterFunc(pause-s.now().Sub(v.base), func() {
		s.background(func() { s.guarded(v, turn) })
	})
}

// guarded calls the locker of a turn, or, when the lock is reserved no more, all that wait.
func (s *Store) guarded(v *view, turn int) {
	if s.lastSeen(v.key).lock.Revision != v.at.lock.Revision {
		return // a locker has come
	}
	t := tries{store: s, deadline: time.Now().Add(s.wait())}
	read := []string{s.names.lock(v.key), s.names.line(v.key)}
	at, _, err := t.list(v.key, v.at)
	if err != nil {
		return // a locker looks after a time
	}
	now, err := s.open(v.key, at, time.Time{})
	if err != nil {
		return
	}
	line := now.line.since(now.gone) // others have come since
	over := turn >= min(len(line), driver.KeptFor) || !v.rec.Reserved(s.now())
	turn = min(turn, len(line))
	txn := Txn{If: []Condition{{s.names.lock(v.key), v.at.lock.Revision}}, Else: read}
	to, next := called{}, names(line[turn:])
	for i, w := range line {
		if over || i == turn {
			c, _ := next.Call(w.Name.ID(), 0)
			to.add(w.Process, w.Name, c, call{
				Lock: at.lock.Value, At: at.lock.Revision.Number, Version: at.lock.Revision.Version, Age: s.now().Sub(v.base).Milliseconds(),
			})
		}
	}
	txn.Then = to.ops(s.names, v.key)
	answer, received, _, err := t.send(txn)
	switch {
	case err != nil:
	case !answer.Done:
		_, _ = s.open(v.key, found{lock: answer.Read[0], line: answer.Read[1]}, received)
	case !over:
		s.guard(v, turn+1)
	}
}
