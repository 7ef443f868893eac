package core

import "time"

// SetWall replaces the locker's wall clock, to play a suspended machine.
func SetWall(l *Locker, wall func() time.Time) { l.clock.Played = wall }

// Entries is how many keys the locker knows at the moment.
func Entries(l *Locker) int {
	n := 0
	for i := range l.shards {
		sh := &l.shards[i]
		sh.mu.Lock()
		n += len(sh.entries)
		sh.mu.Unlock()
	}
	return n
}

// Orphans is how many owners the reaper looks after.
func Orphans(l *Locker) int {
	l.reaper.mu.Lock()
	defer l.reaper.mu.Unlock()
	return len(l.reaper.orphans)
}

// Principals is for how many principals a rule's limit keeps counts.
func Principals(g *Guard) int {
	l := g.config.guard.limit
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.users)
}

// Turns is how many grants the locker counts as not over, for which Close waits.
func Turns(l *Locker) int64 { return l.turns.Load() }

// HoldWatchdog keeps the watchdog from looking at anything that is due: a process
// whose scheduler is late.
func HoldWatchdog(l *Locker) {
	for i := range l.shards {
		sh := &l.shards[i]
		sh.mu.Lock()
		for _, e := range sh.entries {
			if e.ten != nil {
				l.dog.forget(e.ten)
			}
		}
		sh.mu.Unlock()
	}
}

// SetMostOrphans sets how many owners the reaper looks after at the most.
func SetMostOrphans(l *Locker, n int) { l.reaper.most = n }
