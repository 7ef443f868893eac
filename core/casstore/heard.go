package casstore

import (
	"context"
	"slices"
	"time"
)

// callsStay is how long a call stays that was heard. Another call to the same key in that time writes the same
// entry: so a key with many calls costs no deletions, and calls to other keys are deleted together.
const callsStay = time.Second

// heard is the entry of a call that was heard.
type heard struct {
	revision Revision
	at       time.Time
	unsure   bool // a transaction that deletes it may have been executed
}

// hears notes a change of a call. Its entry is deleted after a time.
func (s *Store) hears(change Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if change.Deleted {
		delete(s.calls, change.Name)
		return
	}
	s.calls[change.Name] = heard{revision: change.Revision, at: s.now()}
	s.clearCalls()
}

// clearCalls sees to it that calls are deleted. Called with the mutex held.
func (s *Store) clearCalls() {
	if s.clearing || len(s.calls) == 0 {
		return
	}
	s.clearing = true
	time.AfterFunc(callsStay, func() {
		s.background(func() {
			s.forgetCalls(s.done, callsStay)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.clearing = false
			s.clearCalls()
		})
	})
}

// forgetCalls deletes the calls that have stayed for a time since they were heard. Failed deletions are repeated the
// next time.
func (s *Store) forgetCalls(ctx context.Context, stay time.Duration) {
	s.mu.Lock()
	var old []string
	for name, c := range s.calls {
		if s.now().Sub(c.at) >= stay {
			old = append(old, name)
		}
	}
	s.mu.Unlock()
	for some := range slices.Chunk(old, batch) {
		for len(some) > 0 {
			some = s.deleteCalls(ctx, some)
		}
	}
}

// deleteCalls deletes calls, if all of them are as they were heard. It returns the calls for which another try can succeed.
func (s *Store) deleteCalls(ctx context.Context, names []string) (again []string) {
	var txn Txn
	unsure := false
	s.mu.Lock()
	for _, name := range names {
		c := s.calls[name]
		unsure = unsure || c.unsure
		txn.If = append(txn.If, Condition{name, c.revision})
		txn.Then = append(txn.Then, Op{Name: name, Delete: true, Brief: true})
	}
	s.mu.Unlock()
	conditions := txn.If
	if txn.Else = names; unsure { // a later call may have the Version of a deleted call
		txn = Txn{Read: names}
	}
	t := tries{store: s, deadline: time.Now().Add(s.wait()), base: ctx}
	answer, _, _, err := t.send(txn)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, c := range conditions {
		last, ok := s.calls[c.Name]
		switch {
		case !ok || last.revision != c.Revision: // another one was heard since
		case err != nil:
			last.unsure = true
			s.calls[c.Name] = last
		case answer.Done && !unsure || answer.Read[i].Revision != c.Revision:
			delete(s.calls, c.Name)
		default:
			last.unsure = false
			s.calls[c.Name] = last
			again = append(again, c.Name)
		}
	}
	if !unsure && len(again) == len(names) {
		return nil
	}
	return again
}
