package driver

import (
	"context"
	"iter"
	"time"
)

// Lister is an optional interface of a [Store]: it shows its locks to operators, by package fleet. No
// lock depends on it. All methods are safe for concurrent use.
type Lister interface {
	// Look returns the state of the lock of a key. A key that was never locked has a View with
	// its key alone. The error matches [ErrKeyOccupied] if the key has a value that is no lock.
	Look(ctx context.Context, key string) (View, error)

	// List goes through the locks that are held or kept, with keys that begin with a text. A store that
	// reads each lock by a request does not read the keys that do not fit, unless fits is nil; another
	// store may return them. It reads a bounded page at a time. A lock that is held all the time is returned at least once. An error
	// ends the iteration, unless it comes with a View that has a key: then the lock cannot be read, as
	// after damage, and the iteration goes on. Holders may lack their Host. If a server of several
	// does not answer, the locks of the others are returned before an error that matches
	// [ErrIncomplete].
	List(ctx context.Context, begin string, fits func(key string) bool) iter.Seq2[View, error]
}

// View is the state of the lock of a key, for an operator.
type View struct {
	Key     string
	Holders []HolderView
	// More is how many holders there are besides. Only a list of locks leaves out some of very many.
	More int
	// Waiting has the lockers that wait, in the order of their turns, with those
	// that were called to a place and have not come yet.
	Waiting Waiters
	// Kept, unless zero, is for how long a lock without a holder is kept for the first KeptFor
	// lockers of Waiting.
	Kept    time.Duration
	KeptFor int
	// Token is the last fencing token that the store remembers.
	Token int64
	// Voted says that the lock is a quorum's, of which this store is one server.
	Voted bool
	// Now is the time of the store's clock; zero if the store has none.
	Now time.Time
	// Entries, unless nil, reads the entries of the lockers that hold the lock or wait, by their ids
	// ([Registry]). An entry that is not read in a short time is missing.
	Entries func(ctx context.Context) map[string]Entry
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
	// Sign is the time of the holder's last sign of life, by the holder's clock, on a store without a clock. It is
	// zero if the store does not know the time. Each sign changes it.
	Sign time.Time
	// Host and PID name the process, if the store knows them without a [Registry].
	Host string
	PID  int
}
