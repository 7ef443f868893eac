package lock

import "time"

// Stats are what a Table looks after.
type Stats struct {
	// Keys is how many keys a caller holds or waits for, or were released just now.
	Keys int
	// Holds is how many holds there are, for which [Table.Close] waits.
	Holds int64
	// Orphans is how many owners the reaper looks after.
	Orphans int
}

// Stats counts the keys, holds and orphans of the Table.
func (t *Table) Stats() Stats {
	s := Stats{Holds: t.life.holds.Load()}
	for i := range t.keys.shards {
		sh := &t.keys.shards[i]
		sh.mu.Lock()
		s.Keys += len(sh.locks)
		sh.mu.Unlock()
	}
	t.reaper.mu.Lock()
	defer t.reaper.mu.Unlock()
	s.Orphans = len(t.reaper.orphans)
	return s
}

// StopEvents keeps the watchdog from looking at its present ownerships. It is for
// tests: it plays a process with a late scheduler.
func (t *Table) StopEvents() {
	for i := range t.keys.shards {
		sh := &t.keys.shards[i]
		sh.mu.Lock()
		for _, l := range sh.locks {
			if l.phase == held {
				t.watchdog.events.Cancel(l.own)
			}
			for _, own := range l.places.held() {
				t.watchdog.events.Cancel(own)
			}
		}
		sh.mu.Unlock()
	}
}

// SetMostOrphans sets how many owners the reaper looks after at the most. It is for
// tests, before the first call of another method.
func (t *Table) SetMostOrphans(n int) { t.reaper.most = n }

// State is the state of one key in this process.
type State struct {
	// Key is the lock's key.
	Key string
	// Holder has the lock; nil if no caller of this process has it. Of several that
	// share one hold in the store it is one.
	Holder Holder
	// Terms are what Holder asked for.
	Terms *Terms
	// Since, Token and Holds are when it got the lock, its fencing token, and how
	// many holds it has, together with the callers that share it.
	Since time.Time
	Token int64
	Holds int
	// Deadline is until when its lease is good without another renewal. Renewals is
	// how many renewals the store has confirmed, and LastError the error of the last
	// one; nil if that succeeded.
	Deadline  time.Time
	Renewals  int
	LastError error
	// Waiters is how many callers of this process wait.
	Waiters int
}

// States lists the keys that a caller of this process holds or waits for. A key of
// which the process has several places is there as often; the first of these has the
// number of the waiters.
func (t *Table) States() []State {
	var all []State
	for i := range t.keys.shards {
		sh := &t.keys.shards[i]
		sh.mu.Lock()
		for _, l := range sh.locks {
			s := State{Key: l.key, Waiters: int(l.waiters.n)}
			if l.phase == held && l.own.holder != nil {
				all = append(all, l.own.state(s))
				continue
			}
			for _, own := range l.places.held() {
				all = append(all, own.state(s))
				s.Waiters = 0
			}
			if s.Waiters > 0 {
				all = append(all, s)
			}
		}
		sh.mu.Unlock()
	}
	return all
}

// state describes the ownership, which has a holder.
func (own *ownership) state(s State) State {
	w := own.holder
	clock := &own.lock.shard.table.Clock
	s.Holder, s.Terms, s.Since, s.Token = w.Holder, w.Terms, clock.Time(w.since), w.token
	s.Deadline, s.Renewals, s.LastError = clock.Time(own.lease.deadline()), int(own.renew.confirmed), own.lastError()
	for ; w != nil; w = w.next {
		s.Holds += int(w.holds)
	}
	return s
}

// Waiters returns how many callers of this process wait for a key.
func (t *Table) Waiters(key string) int {
	sh := t.shardOf(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if l := sh.locks[key]; l != nil {
		return int(l.waiters.n)
	}
	return 0
}
