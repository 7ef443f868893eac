// Package timers serves many timed events with one goroutine and one timer.
//
// A [Scheduler] has at most one event for each item. An item is an object of the
// owner of the Scheduler with a [Place] embedded in it, so that an event costs no
// allocation. The owner implements what an event does: [Scheduler.Serve].
package timers

import (
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/internal/clock"
)

// Linger is how long the goroutine of a [Scheduler] stays when there is no event.
// The next event then has neither to start nor to wake it.
const Linger = time.Second

// Scheduler serves items when their time has come. Its goroutine exists only while
// there are events, and for [Linger] after the last one.
//
// The owner sets the exported fields before the first call of a method and does not
// change them. All methods are safe for concurrent use.
//
// Lock order: the mutex under which the owner schedules, then the Scheduler's. The
// Scheduler calls Serve without its mutex, and Go with it.
type Scheduler[T Item] struct {
	// Clock tells the time.
	Clock *clock.Clock
	// Go runs a function on a goroutine of its own.
	Go func(func())
	// Serve does what is due at the time now. The Scheduler has taken the items out.
	// Serve schedules again those that have another event. Between the two, another
	// goroutine may have scheduled or cancelled an item, so Serve looks at each under
	// the owner's mutex. Serve must not keep batch, and delays all other events as
	// long as it runs.
	Serve func(batch []T, now clock.Instant)

	mu      sync.Mutex
	events  heap[T]
	wakeAt  clock.Instant // when the goroutine wakes by itself; 0: it is awake
	poke    chan struct{} // wakes it earlier
	alive   bool          // the goroutine exists
	idle    bool          // it sleeps with no event to sleep for
	stopped bool
}

// Schedule sets the time of the item's event, in place of an earlier one.
//
// When another event is served, the event is served with it up to tolerance before
// its time, and two seconds at most. It does not wake the goroutine earlier.
func (s *Scheduler[T]) Schedule(item T, at clock.Instant, tolerance time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	place := s.events.put(item, at, tolerance)
	switch {
	case !s.alive:
		s.alive, s.idle, s.wakeAt = true, false, 0
		if s.poke == nil {
			s.poke = make(chan struct{}, 1)
		}
		s.Go(s.run)
	case place == 0 && at < s.wakeAt:
		s.wake()
	}
}

// Cancel takes the item's event out, if there is one. Serve may be about to get the
// item all the same.
func (s *Scheduler[T]) Cancel(item T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events.remove(item)
}

// Stop drops all events, and returns their items in no order. The goroutine ends; a
// call of Serve that is about to begin, or under way, takes place. Schedule does
// nothing from now on.
func (s *Scheduler[T]) Stop() (dropped []T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	if s.alive {
		s.wake()
	}
	return s.events.clear()
}

// Items returns the items that have an event, in no order. One that Serve has got at
// this moment is not among them.
func (s *Scheduler[T]) Items() []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.events.all()
}

// wake makes the goroutine look at the events. Called with s.mu held.
func (s *Scheduler[T]) wake() {
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

// run is the goroutine.
func (s *Scheduler[T]) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var batch []T
	for {
		now := s.Clock.Now()
		due, pause, done := s.take(batch[:0], now)
		if done {
			return
		}
		if len(due) > 0 {
			s.Serve(due, now)
			clear(due)
			batch = due
			continue
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-s.poke:
		}
	}
}

// take appends the items that are due to batch. If there are none, it returns how
// long to sleep, or that the goroutine is done.
func (s *Scheduler[T]) take(batch []T, now clock.Instant) (due []T, pause time.Duration, done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || s.events.len() == 0 && s.idle {
		s.alive = false
		return batch, 0, true
	}
	for s.events.len() > 0 {
		at, tolerance := s.events.first()
		if at > now.Add(tolerance) {
			break
		}
		item := s.events.next()
		s.events.remove(item)
		batch = append(batch, item)
	}
	s.idle = len(batch) == 0 && s.events.len() == 0
	switch {
	case len(batch) > 0:
		s.wakeAt = 0 // what is scheduled now is looked at before the sleep
	case s.idle:
		s.wakeAt = now.Add(Linger)
	default:
		s.wakeAt, _ = s.events.first()
	}
	return batch, s.wakeAt.Sub(now), false
}
