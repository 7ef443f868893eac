package memstore

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
)

// Look returns the state of the lock of a key, for package fleet.
func (s *Store) Look(_ context.Context, key string) (driver.View, error) {
	if err := s.own.pass(); err != nil {
		return driver.View{Key: key}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.locks[key]; l != nil {
		return l.View(key, s.now()), nil
	}
	return driver.View{Key: key, Now: s.now()}, nil
}

// List goes through the locks with keys that begin with a text, for package fleet.
func (s *Store) List(ctx context.Context, begin string, _ func(key string) bool) iter.Seq2[driver.View, error] {
	return func(yield func(driver.View, error) bool) {
		s.mu.Lock()
		keys := slices.Sorted(maps.Keys(s.locks))
		s.mu.Unlock()
		for _, key := range keys {
			v, err := s.Look(ctx, key)
			if strings.HasPrefix(key, begin) && !v.Free() && !yield(v, err) {
				return
			}
		}
	}
}

var _ record.Lister = (*Store)(nil)

// LookRecord implements [record.Lister].
func (s *Store) LookRecord(_ context.Context, id string) (record.View, error) {
	if err := s.own.pass(); err != nil {
		return record.View{ID: id}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	v, e := record.View{ID: id}, s.entry(id, now)
	if e == nil {
		if now.Before(s.records.gone[id]) {
			v.State = record.StateExpired
		}
		return v, nil
	}
	if e.damaged {
		v.Damaged = true
		return v, nil
	}
	v.State, v.Generation, v.Marked, v.Kept = e.state, e.generation, e.marked, e.expires.Sub(now)
	if e.state != record.StateInFlight {
		v.Response, v.Size = []byte(e.response[:min(len(e.response), 100)]), len(e.response)
		return v, nil
	}
	v.Step, v.Open, v.Log = e.steps.last, e.steps.open, []byte(e.steps.log)
	ends := e.closed(false)
	v.Left = ends.Sub(now)
	switch {
	case v.Left > 0:
		v.HandedOver = e.ticket.token != "" && (e.token == e.ticket.token || e.token == "" || !now.Before(e.ends))
	case e.unsure():
		v.State = record.StateUnknown
	default:
		v.State = record.StateGranted
	}
	return v, nil
}

// ListRecords implements [record.Lister].
func (s *Store) ListRecords(ctx context.Context, after string, claims bool) iter.Seq2[record.View, error] {
	return func(yield func(record.View, error) bool) {
		s.mu.Lock()
		ids := slices.Sorted(maps.Keys(s.records.entries))
		s.mu.Unlock()
		for _, id := range ids {
			if id <= after {
				continue
			}
			if err := ctx.Err(); err != nil {
				yield(record.View{}, err)
				return
			}
			v, err := s.LookRecord(ctx, id)
			v.Response, v.Log = nil, nil
			ended := v.State == record.StateCompleted || v.State == record.StateUnavailable || v.State == record.StateExpired
			if err == nil && (v.State == 0 && !v.Damaged || claims && ended) {
				continue
			}
			if !yield(v, err) || err != nil {
				return
			}
		}
	}
}
