package casstore

import (
	"context"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// leaveAgain is how long after a failed request that takes a locker out of the line the store repeats it: while the
// server does not answer, and its callers have left.
const leaveAgain = 5 * time.Second

// leaver is a locker of this process that has left the line, and may still be in it.
type leaver struct {
	key, waiter string
	under       chan struct{} // closed at the end of the request under way; nil: there is none
}

// leftLine notes whether a locker that has left may still be in line.
func (s *Store) leftLine(key, waiter string, still bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := s.names.waits(key, waiter)
	switch {
	case !still:
		delete(s.leavers, name)
	case s.leavers[name] == nil:
		s.leavers[name] = &leaver{key: key, waiter: waiter}
		s.leaveLater()
	}
}

// leaveLater sees to it that the requests are repeated. Called with the mutex held.
func (s *Store) leaveLater() {
	if s.leaving || len(s.leavers) == 0 {
		return
	}
	s.leaving = true
	time.AfterFunc(leaveAgain, func() { s.background(s.leaveAll) })
}

// leaveAll repeats the requests until one fails.
func (s *Store) leaveAll() {
	for l := s.nextLeaver(); l != nil; l = s.nextLeaver() {
		ctx, cancel := context.WithTimeout(s.done, patience*s.wait())
		err := s.leave(ctx, l.key, l.waiter, s.lastSeen(l.key))
		cancel()
		s.mu.Lock()
		if close(l.under); err == nil && s.leavers[s.names.waits(l.key, l.waiter)] == l {
			delete(s.leavers, s.names.waits(l.key, l.waiter))
		}
		l.under = nil
		s.mu.Unlock()
		if err != nil {
			break
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaving = false
	s.leaveLater()
}

// nextLeaver returns a locker for which a request begins.
func (s *Store) nextLeaver() *leaver {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.leavers {
		l.under = make(chan struct{})
		return l
	}
	return nil
}

// comesAgain has no request take a locker out of the line that comes now. It waits for the one under way, but no
// longer than for the answer to one try: then the locker would be called in vain, or ask after a time.
func (s *Store) comesAgain(key string, waiter driver.Waiter) {
	s.mu.Lock()
	name := s.names.waits(key, waiter.ID())
	l := s.leavers[name]
	delete(s.leavers, name)
	var under chan struct{}
	if l != nil {
		under = l.under
	}
	s.mu.Unlock()
	if under == nil {
		return
	}
	timer := time.NewTimer(s.wait())
	defer timer.Stop()
	select {
	case <-under:
	case <-timer.C:
	}
}
