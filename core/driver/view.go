package driver

import "time"

// View is the state of the lock of a key, for an operator.
type View struct {
	Key     string
	Holders []HolderView
	// Waiting has the lockers that wait, in the order of their turns, as [Signal.Next] has them, with those
	// that were called to a place and have not come yet.
	Waiting Waiters
	// Kept, unless zero, is for how long a lock without a holder is kept for the first KeptFor
	// lockers of Waiting.
	Kept    time.Duration
	KeptFor int
	// Token is the last fencing token that the store remembers.
	Token int64
	// Now is the time of the store's clock; zero if the store has none.
	Now time.Time
}

// Free reports whether the lock has no holder, and is kept for no locker.
func (v *View) Free() bool { return len(v.Holders) == 0 && v.Kept <= 0 }

// HolderView is an owner that holds a lock, or is offered it.
type HolderView struct {
	Owner string
	Token int64
	// Place says that it has a place beside other holders: a shared lock, or a permit.
	Place bool
	// Left is the rest of the lease. Whole says that the store has no clock: Left is then the whole
	// lease, which counts from the last sign of life.
	Left  time.Duration
	Whole bool
	// Host and PID name the process, if the store knows them without a [Registry].
	Host string
	PID  int
}
