package lock

// Stats are what a Table looks after.
type Stats struct {
	// Keys is how many keys a caller holds or waits for, or were released just now.
	Keys int
	// Holds is how many holds there are, for which [Table.Close] waits.
	Holds int64
	// Orphans is how many owners the reaper looks after.
	Orphans int
}

// Stats counts what the Table looks after.
func (t *Table) Stats() Stats {
	s := Stats{Holds: t.holds.Load()}
	for i := range t.shards {
		sh := &t.shards[i]
		sh.mu.Lock()
		s.Keys += len(sh.locks)
		sh.mu.Unlock()
	}
	t.reaper.mu.Lock()
	defer t.reaper.mu.Unlock()
	s.Orphans = len(t.reaper.orphans)
	return s
}

// StopEvents keeps the renewer from looking at what it looks after now. It is for
// tests: it plays a process whose scheduler is late.
func (t *Table) StopEvents() {
	for i := range t.shards {
		sh := &t.shards[i]
		sh.mu.Lock()
		for _, l := range sh.locks {
			if l.phase == held {
				t.renewer.cancel(l.own)
			}
			for _, own := range l.places.held() {
				t.renewer.cancel(own)
			}
		}
		sh.mu.Unlock()
	}
}

// SetMostOrphans sets how many owners the reaper looks after at the most. It is for
// tests, before the first call of another method.
func (t *Table) SetMostOrphans(n int) { t.reaper.most = n }
