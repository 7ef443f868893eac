package casstore

import (
	"context"
	"strconv"
	"strings"
	"time"
)

// beat returns the operation that writes the sign of life for locks of a lease, if that
// was not written lately. So each lock has a beat from the beginning. A sweep finds the locks
// of a dead process by its beat.
func (s *Store) beat(lease time.Duration) []Op {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, ok := s.beaten[lease]; ok && s.now().Sub(last) < dead/4 {
		return nil
	}
	return []Op{s.sign(lease)}
}

// sign is the operation that gives a sign of life. Its value is the host and the number of the process, and the
// time by its own clock, which is for operators: no rule rests on it.
func (s *Store) sign(lease time.Duration) Op {
	return Op{Name: s.names.beat(s.process, lease), Value: s.host + "@" + strconv.FormatInt(time.Now().UnixMilli(), 10)}
}

// signOf reads the value of a sign of life. The time is zero if it is not known.
func signOf(value string) (host string, at time.Time) {
	host, text, _ := strings.Cut(value, "@")
	if ms, err := strconv.ParseInt(text, 10, 64); err == nil {
		at = time.UnixMilli(ms)
	}
	return host, at
}

// wrote notes that the sign of life was written, now or lately.
func (s *Store) wrote(lease time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.spent, lease)
	if now := s.now(); now.Sub(s.beaten[lease]) >= dead/4 {
		s.beaten[lease] = now
	}
}

// spend returns the leases of beats that no lock of the process needs, and notes that they are
// not written. A beat that is deleted later than a new lock was granted is written again by the
// first renewal, and the lock cannot be taken over between: an absent beat is a state, too.
// Where lockers are listed, one beat stays: a sweep finds their names by it.
func (s *Store) spend() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	needed := map[time.Duration]bool{}
	for _, h := range s.holds {
		needed[h.lease], needed[h.as.lease()] = true, true
	}
	keep := len(s.queues)+len(s.leavers) > 0 && len(s.holds) == 0
	for lease := range s.beaten {
		switch {
		case needed[lease]:
		case keep:
			keep = false
		default:
			delete(s.beaten, lease)
			s.spent[lease] = true
		}
	}
	leases := make([]time.Duration, 0, len(s.spent))
	for lease := range s.spent {
		leases = append(leases, lease)
	}
	return leases
}

// forgetBeats deletes the beats that no lock of the process needs. Failed deletions are
// repeated the next time.
func (s *Store) forgetBeats(ctx context.Context) {
	for leases := s.spend(); len(leases) > 0; {
		some := leases[:min(batch, len(leases))]
		leases = leases[len(some):]
		var txn Txn
		for _, lease := range some {
			txn.Then = append(txn.Then, Op{Name: s.names.beat(s.process, lease), Delete: true})
		}
		t := tries{store: s, deadline: time.Now().Add(s.wait()), base: ctx}
		if _, _, _, err := t.send(txn); err != nil {
			return
		}
		s.mu.Lock()
		for _, lease := range some {
			delete(s.spent, lease)
		}
		s.mu.Unlock()
	}
}
