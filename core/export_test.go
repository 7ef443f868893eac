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

// Voids is how many owners the janitor looks after.
func Voids(l *Locker) int {
	l.janitor.mu.Lock()
	defer l.janitor.mu.Unlock()
	return len(l.janitor.voids)
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

// SetMostVoids sets how many owners the janitor looks after at the most.
func SetMostVoids(l *Locker, n int) { l.janitor.most = n }
