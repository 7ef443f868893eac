package keystate_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/drivertest"
	"github.com/interlock-go/interlock/core/driver/keystate"
	_ "github.com/interlock-go/interlock/internal/bubble"
)

// A map of records under the clock of a bubble is a whole store.
func TestTheRulesKeepTheContractOfAStore(t *testing.T) {
	drivertest.RunInBubbles(t, func(*testing.T) driver.Store {
		return &store{
			records: map[string]*keystate.Record{}, watches: map[string]map[int]func(driver.Signal){},
			hints: map[string]func(key, owner string){}, offers: map[string]func(driver.Offer){},
		}
	})
}

// store keeps a record for each key, and sends all notices at once.
type store struct {
	mu      sync.Mutex
	records map[string]*keystate.Record
	notes   keystate.Notes
	watches map[string]map[int]func(driver.Signal)
	hints   map[string]func(key, owner string)
	offers  map[string]func(driver.Offer)
	made    int // how many watches
}

// change carries a request out, and sends the notices.
func (s *store) change(key string, by func(r *keystate.Record, now time.Time) keystate.Notices) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.records[key] == nil {
		s.records[key] = &keystate.Record{}
	}
	n := by(s.records[key], time.Now())
	if take := s.offers[n.To]; take != nil {
		n.Offer.Key = key
		take(n.Offer)
	}
	if hear := s.hints[n.Displaced]; hear != nil {
		hear(key, driver.Attentive(n.Displaced+":0"))
	}
	for _, owner := range n.Wanted {
		if id, _ := driver.IsAttentive(owner); s.hints[id] != nil {
			s.hints[id](key, owner)
		}
	}
	for _, wake := range s.watches[key] {
		if n.Announced {
			wake(n.Signal)
		}
	}
}

func (s *store) Acquire(_ context.Context, req driver.AcquireRequest) (rep driver.Reply, err error) {
	if err := keystate.Check(&req); err != nil {
		return rep, err
	}
	s.change(req.Key, func(r *keystate.Record, now time.Time) (n keystate.Notices) {
		if req.From != "" {
			rep, n, err = r.Move(req, now)
			s.notes.Note(req.Key, req.From, n, now)
			err = s.notes.Explain(err, req.Key, req.From, true, now)
		} else {
			rep, n = r.Acquire(req, now)
		}
		rep.Sent = now
		return n
	})
	return rep, err
}

func (s *store) Space() string { return "records" }

func (s *store) Stand(_ context.Context, req driver.AcquireRequest) (rep driver.Reply, err error) {
	s.change(req.Key, func(r *keystate.Record, now time.Time) (n keystate.Notices) {
		rep, n = r.Stand(req, now)
		return n
	})
	return rep, nil
}

func (s *store) Renew(_ context.Context, batch []driver.Renewal, done func(i int, contended bool, err error)) {
	for i, renewal := range batch {
		s.change(renewal.Key, func(r *keystate.Record, now time.Time) (n keystate.Notices) {
			contended, err := r.Renew(renewal, now)
			done(i, contended, s.notes.Explain(err, renewal.Key, renewal.Owner, false, now))
			return n
		})
	}
}

func (s *store) Release(_ context.Context, req driver.ReleaseRequest) (waiting driver.Waiters, err error) {
	s.change(req.Key, func(r *keystate.Record, now time.Time) (n keystate.Notices) {
		waiting, n, err = r.Release(req, func(id string) bool { return s.offers[id] != nil }, now)
		s.notes.Note(req.Key, req.Owner, n, now)
		err = s.notes.Explain(err, req.Key, req.Owner, false, now)
		return n
	})
	return waiting, err
}

func (s *store) RoundTrip() time.Duration { return 0 }

func (s *store) Decline(_ context.Context, key, waiter string) error {
	s.change(key, func(r *keystate.Record, now time.Time) keystate.Notices { return r.Decline(waiter, now) })
	return nil
}

// Watch reports at once that the lock may be free: the store keeps no time of the last release.
func (s *store) Watch(_, key string, _ time.Time, wake func(driver.Signal)) (stop func()) {
	wake(driver.Signal{})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watches[key] == nil {
		s.watches[key] = map[int]func(driver.Signal){}
	}
	s.made++
	id := s.made
	s.watches[key][id] = wake
	return s.stop(func() { delete(s.watches[key], id) })
}

func (s *store) Notify(id string, hear func(key, owner string)) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hints[id] = hear
	return s.stop(func() { delete(s.hints, id) })
}

func (s *store) Offers(id string, ready func(bool), take func(driver.Offer)) (stop func()) {
	ready(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offers[id] = take
	return s.stop(func() { delete(s.offers, id) })
}

func (s *store) stop(ends func()) func() {
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		ends()
	}
}
