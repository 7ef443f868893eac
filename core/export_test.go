package core

import "time"

// SetWall replaces the locker's wall clock, to play a suspended machine.
func SetWall(l *Locker, wall func() time.Time) { l.locks.Clock.Played = wall }

// Principals is for how many principals a rule's limit keeps counts.
func Principals(g *Guard) int {
	l := g.config.guard.limit
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.users)
}

// ID is the locker's name in the store.
func ID(l *Locker) string { return l.locks.ID }

// Entries is how many keys the locker knows at the moment.
func Entries(l *Locker) int { return l.locks.Stats().Keys }

// Orphans is how many owners the reaper looks after.
func Orphans(l *Locker) int { return l.locks.Stats().Orphans }

// Turns is how many grants the locker counts as not over, for which Close waits.
func Turns(l *Locker) int64 { return l.locks.Stats().Holds }

// HoldWatchdog keeps the watchdog from looking at anything that is due, as in a process
// with a late scheduler.
func HoldWatchdog(l *Locker) { l.locks.StopEvents() }

// SetMostOrphans sets how many owners the reaper looks after at the most.
func SetMostOrphans(l *Locker, n int) { l.locks.SetMostOrphans(n) }

// SetMostCallbacks sets how many calls of the observer may wait.
func SetMostCallbacks(l *Locker, n int) { l.calls.observed.Most = n }

// Invalid has f take the broken rule of a lock of the locker after an event.
func Invalid(l *Locker, f func(error)) { l.locks.Hooks.Invalid = f }

// Aged is the ticket as it looks to a machine whose clock is ahead by a time.
func Aged(ticket Ticket, by time.Duration) Ticket {
	t := *ticket.t
	t.expires = t.expires.Add(-by)
	return Ticket{&t}
}
