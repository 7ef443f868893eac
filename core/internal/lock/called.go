package lock

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
)

// The store calls the process by name ([driver.Call]): its turn has come, the lock is offered to it, another
// locker waits for a lock that it has, a newer caller has come before it, or calls may have been lost. A call
// may be lost, late, repeated or forged, and comes before or after the answer to a request that was sent
// before it. So all but an offer (offers.go) only has the process ask or renew sooner than it had planned to,
// and never later.

// subscription is the calls of the store to a Table. They begin with the first caller that is refused and
// waits, or that is attentive, and end with the Table.
type subscription struct {
	begun   atomic.Bool
	reached atomic.Bool // the process may say that it takes offers

	mu    sync.Mutex
	stop  func()
	ended bool
}

// listen has the store call the Table, if it does not yet.
func (t *Table) listen() {
	s := &t.calls
	if s.begun.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop == nil && !s.ended {
		s.stop = t.store.Calls(t.ID, t.called)
		s.begun.Store(true)
	}
}

// end ends the calls.
func (s *subscription) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if s.stop != nil {
		s.stop()
		s.stop = nil
	}
}

// called takes a call. A call without a key is one about all locks.
func (t *Table) called(c driver.Call) {
	if c.What == driver.Unsure && c.Key == "" {
		t.calls.reached.Store(c.Reached)
	}
	now, ahead := t.Clock.Read()
	var all []*ownership
	event := func(l *lock, fx *effects) { all = l.called(now, ahead, c, all, fx) }
	if c.Key == "" {
		t.each(event)
	} else if l := t.find(c.Key); l != nil {
		l.shard.event(l, func(fx *effects) { event(l, fx) })
	} else if c.What == driver.Offered {
		t.passOn(c.Key, c.Token)
	}
	for _, own := range all {
		own.lock.shard.event(own.lock, func(fx *effects) { own.hinted(now, fx) })
	}
}

// find returns the lock of a key, or nil.
func (t *Table) find(key string) *lock {
	sh := t.shardOf(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.locks[key]
}

// called is the event that the store has called. It appends the ownerships to query to all.
func (l *lock) called(now clock.Instant, ahead time.Duration, c driver.Call, all []*ownership, fx *effects) []*ownership {
	switch c.What {
	case driver.Offered:
		l.offered(now, ahead, offer{c.Token, c.Others, c.Room}, fx)
	case driver.Turn:
		l.turn(now.Add(max(c.In, 0)), c.Others, fx)
	case driver.Wanted, driver.Displaced:
		return l.hinted(c.Owner, now, all, fx)
	case driver.Unsure:
		l.turn(now, false, fx)
		return l.hinted("", now, all, fx)
	}
	return all
}

// turn plans a request for the instant of this process's turn. A request that is on its way may have been
// carried out before: its answer does not put off another one.
func (l *lock) turn(at clock.Instant, others bool, fx *effects) {
	if l.phase == held || l.phase == idle {
		return // no caller waits, nor will the request that is under way
	}
	next := &l.acquisition().next
	next.others = next.others || others
	if next.turn == 0 || at < next.turn {
		next.turn = at
	}
	if l.phase == acquiring && l.asking() == 0 {
		next.tryAt = min(next.tryAt, at)
		fx.wakes.look = l.waiters.first
	}
}
