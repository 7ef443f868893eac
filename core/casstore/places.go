package casstore

import "time"

// queue is where this process waits for a key.
type queue struct {
	watches int
	waiters map[string]Revision // the places of lockers of this process; zero: not known
	since   time.Time           // when the last locker came
}

// queue returns the queue of a key. Called with the mutex held.
func (s *Store) queue(key string) *queue {
	q := s.queues[key]
	if q == nil {
		q = &queue{waiters: map[string]Revision{}}
		s.queues[key] = q
	}
	return q
}

// enters notes that a locker of this process is about to be listed.
func (s *Store) enters(key, locker string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queue(key)
	q.waiters[locker], q.since = Revision{}, s.now()
}

// entered notes where a locker of this process is listed. Where its last caller has left
// meanwhile, the leaving may have found no place yet, and is done again.
func (s *Store) entered(key, locker string, at Revision) {
	s.mu.Lock()
	q := s.queues[key]
	waits := false
	if q != nil {
		if _, waits = q.waiters[locker]; waits {
			q.waiters[locker] = at
		}
	}
	s.mu.Unlock()
	if !waits {
		s.background(func() { s.leave(key, locker, at) })
	}
}

// leaves notes that a locker is listed no more.
func (s *Store) leaves(key, locker string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.queues[key]; q != nil {
		if delete(q.waiters, locker); q.watches == 0 && len(q.waiters) == 0 {
			delete(s.queues, key)
		}
	}
}

// waits reports whether a locker of this process may be listed.
func (s *Store) waits(key, locker string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.queues[key]; q != nil {
		_, ok := q.waiters[locker]
		return ok
	}
	return false
}

// leave deletes the place of a locker after its callers have left, and goes on while the
// server does not answer: otherwise each release would take the locker for a waiting one. It
// deletes the place at its revision, so a place that the locker has taken again since stays.
func (s *Store) leave(key, locker string, at Revision) {
	name := s.names.waiter(key, locker)
	t := tries{store: s, deadline: time.Now().Add(dead)}
	for {
		txn := Txn{If: []Condition{{name, at}}, Else: []string{name}}
		if at != (Revision{}) {
			txn.Then = []Op{{Name: name, Delete: true}}
		}
		answer, _, again, err := t.send(txn)
		switch {
		case again:
			continue
		case err != nil || answer.Done || !answer.Read[0].There() || s.waits(key, locker):
			return
		}
		at = answer.Read[0].Revision
	}
}

// abandoned are the places of lockers that have had no watch for a time: their callers have
// left before they began to wait.
func (s *Store) abandoned(most time.Duration) {
	s.mu.Lock()
	gone := map[string]*queue{}
	for key, q := range s.queues {
		if q.watches == 0 && s.now().Sub(q.since) >= most {
			gone[key] = q
			delete(s.queues, key)
		}
	}
	s.mu.Unlock()
	for key, q := range gone {
		for locker, at := range q.waiters {
			s.background(func() { s.leave(key, locker, at) })
		}
	}
}
