package pgstore

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// awaited are the duplicates of this process that wait for records.
type awaited struct {
	listening atomic.Bool // notifications of other processes are heard
	begin     sync.Once   // of the listening

	mu    sync.Mutex
	wakes map[string]map[*func()]struct{}
}

func (a *awaited) init() { a.wakes = make(map[string]map[*func()]struct{}) }

// listens reports whether announcements of other processes are heard.
func (a *awaited) listens() bool { return a.listening.Load() }

// add has wake called for a record, until stop.
func (a *awaited) add(id string, wake func()) (stop func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.wakes[id] == nil {
		a.wakes[id] = make(map[*func()]struct{})
	}
	own := &wake
	a.wakes[id][own] = struct{}{}
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.wakes[id], own)
		if len(a.wakes[id]) == 0 {
			delete(a.wakes, id)
		}
	}
}

// wake wakes those who wait for a record.
func (a *awaited) wake(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for wake := range a.wakes[id] {
		(*wake)()
	}
}

// announcement begins the announcement of a record, before its id. Announcements of locks are on
// the same channel, and begin with a hash.
const announcement = "record "

// hear takes an announcement.
func (a *awaited) hear(payload string) {
	if id, ok := strings.CutPrefix(payload, announcement); ok {
		a.wake(id)
	}
}

// state notes whether announcements are heard. Those who wait look again: if they are
// heard now, some may have been missed, and if not, more may be.
func (a *awaited) state(listening bool) {
	a.listening.Store(listening)
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, wakes := range a.wakes {
		for wake := range wakes {
			(*wake)()
		}
	}
}

// relisten is the pause before a listener that failed begins anew.
const relisten = time.Second

// Await implements [record.Store]. The function wake must return at once.
func (s *Store) Await(id string, _ time.Time, wake func()) (stop func()) {
	s.awaited.begin.Do(func() {
		if s.listener != nil {
			s.work.Go(s.listen)
		}
	})
	stop = s.awaited.add(id, wake)
	// The record may have been completed since the caller last looked.
	wake()
	return stop
}

// listen hears the announcements of other processes until the store is closed. A failure is
// logged, at once and then once a minute.
func (s *Store) listen() {
	for again := true; again; again = s.work.Sleep(relisten, nil) {
		err := s.ears.Listen(s.work.Life(), s.awaited.hear, s.awaited.state)
		s.awaited.state(false)
		s.work.Failed("the listener for completed requests has ended; "+
			"duplicates that wait look once a second until it begins anew", err)
	}
}
