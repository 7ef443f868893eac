package memstore

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/interlock-go/interlock/core/driver/keystate"
	"github.com/interlock-go/interlock/core/idempotency/record"
)

// Record is the store's record of an idempotent request.
type Record struct {
	// ID is the name of the record, a hash of the principal and the key.
	ID string
	// Token is the attempt that has the record. It is empty if the claim that took over
	// was given up: the claim before it has lapsed.
	Token string
	// State is [record.StateInFlight] for a claim, also for a claim that has lapsed.
	// Else it is [record.StateCompleted] or [record.StateUnavailable].
	State record.State
	// Generation is 1, and one more with each take-over.
	Generation int64
	// Left is the rest of the lease of a claim; 0 if the lease has ended.
	Left time.Duration
	// Marked says that the effect may have happened.
	Marked bool
	// Step is the name of the last step with a stored outcome, and Open the name of a step that is
	// under way and must not run twice (idempotency.Step).
	Step, Open string
	// Waiting counts the duplicates that wait for the answer.
	Waiting int
	// Response is the answer as the engine has encoded it.
	Response string
}

// Records returns the records that there are, in the order of their IDs.
func (s *Store) Records() []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	var all []Record
	for id := range s.records.entries {
		e := s.entry(id, now)
		if e == nil {
			continue
		}
		r := Record{
			ID: id, Token: e.token, State: e.state, Generation: e.generation, Marked: e.marked,
			Waiting: len(s.records.awaiting[id]), Response: e.response,
			Step: e.steps.last, Open: e.steps.open,
		}
		if e.state == record.StateInFlight {
			r.Left = max(0, e.ends.Sub(now))
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b Record) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// LapseClaims ends the leases of all claims now, as if their processes had been silent
// for so long, and the tickets that no job has taken. It returns how many claims there are. A duplicate then takes a claim over,
// or gets the error that its outcome is unknown. A process that runs gets the lease back
// with its next renewal, unless a duplicate was quicker.
func (s *Store) LapseClaims() int {
	claims, wake := s.changeClaims(func(e *entry, now time.Time) {
		if e.ends = now; e.token == e.ticket.token || e.token == "" {
			e.ticket.ends = now // no job has it
		}
	})
	wake()
	return len(claims)
}

// TakeClaims gives all claims to another process for the time of lease, as if they had
// lapsed: the handlers that run have lost their claims, and find that out at the next
// renewal. commit stores an answer as the other process does, in each of those records
// that the process still has. No engine can read the answer, unless it is the Response
// of a [Record].
func (s *Store) TakeClaims(lease time.Duration) (commit func(response string)) {
	s.mu.Lock()
	token := s.another()
	s.mu.Unlock()
	claims, _ := s.changeClaims(func(e *entry, now time.Time) { e.takenOver(token, now, lease, lease) })
	return func(response string) {
		s.mu.Lock()
		var stored []string
		for _, id := range claims {
			e := s.entry(id, s.now())
			if e != nil && e.token == token && e.state == record.StateInFlight {
				e.state, e.response = record.StateCompleted, response
				stored = append(stored, id)
			}
		}
		wake := s.announcing(stored...)
		s.mu.Unlock()
		wake()
	}
}

// changeClaims changes all claims, and returns their IDs and what wakes their duplicates.
func (s *Store) changeClaims(change func(e *entry, now time.Time)) (ids []string, wake func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for id := range s.records.entries {
		if e := s.entry(id, now); e != nil && e.state == record.StateInFlight {
			change(e, now)
			ids = append(ids, id)
		}
	}
	return ids, s.announcing(ids...)
}

// DamageRecords makes all records unreadable, and returns how many there are. Each
// request about such a record fails with an error that matches [record.ErrDamaged], until
// the record is forgotten.
func (s *Store) DamageRecords() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for id := range s.records.entries {
		if e := s.entry(id, s.now()); e != nil {
			e.damaged = true
			n++
		}
	}
	return n
}

// Empty loses all locks and all records, like a restarted server without its data. The
// holders of the locks find that out at the next renewal, or when they release. A handler
// finds the loss of its claim out at the next renewal, and its commit stores the answer
// all the same.
func (s *Store) Empty() {
	s.mu.Lock()
	keys := slices.Collect(maps.Keys(s.locks))
	tell := s.announcing(slices.Collect(maps.Keys(s.records.awaiting))...)
	clear(s.records.entries)
	clear(s.records.gone)
	s.mu.Unlock()
	for _, key := range keys {
		s.change(key, (*keystate.Record).Lose) // the tokens stay, as a token must not come twice
	}
	tell()
}
