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
			records: map[string]*keystate.Record{}, calls: map[string]func(driver.Call){},
		}
	})
}

// store keeps a record for each key, and sends all notices at once.
type store struct {
	mu      sync.Mutex
	records map[string]*keystate.Record
	notes   keystate.Notes
	calls   map[string]func(driver.Call)
}

// change carries a request out, and sends the notices.
func (s *store) change(key string, by func(r *keystate.Record, now time.Time) keystate.Notices) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.records[key] == nil {
		s.records[key] = &keystate.Record{}
	}
	for _, c := range by(s.records[key], time.Now()).Calls {
		if hear := s.calls[c.To]; hear != nil {
			c.Key = key
			hear(c.Call)
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

func (s *store) Release(_ context.Context, req driver.ReleaseRequest) (found driver.Waiting, err error) {
	s.change(req.Key, func(r *keystate.Record, now time.Time) (n keystate.Notices) {
		found, n, err = r.Release(req, func(id string) bool { return s.calls[id] != nil }, now)
		s.notes.Note(req.Key, req.Owner, n, now)
		err = s.notes.Explain(err, req.Key, req.Owner, false, now)
		return n
	})
	return found, err
}

func (s *store) RoundTrip() time.Duration { return 0 }

func (s *store) Decline(_ context.Context, key, waiter string) error {
	s.change(key, func(r *keystate.Record, now time.Time) keystate.Notices { return r.Decline(waiter, now) })
	return nil
}

func (s *store) Calls(id string, hear func(driver.Call)) (stop func()) {
	s.mu.Lock()
	s.calls[id] = hear
	s.mu.Unlock()
	hear(driver.Call{Reached: true})
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.calls, id)
	}
}
