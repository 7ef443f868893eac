package driver

import (
	"context"
	"iter"
	"time"
)

// Registry is what a [Store] may implement besides: besides the locks it keeps an entry
// about each locker, so that an operator can see which process holds a lock. No lock
// depends on an entry. All methods are safe for concurrent use.
type Registry interface {
	// Announce writes the entry of a locker, in place of an earlier one. The entry
	// stays for [Announcement.TTL]. The store makes one try, and returns when ctx ends.
	Announce(ctx context.Context, a Announcement) error

	// Withdraw deletes the entry of a locker, if there is one.
	Withdraw(ctx context.Context, id string) error

	// Entries goes through the entries, as [Lister.List] goes through the locks.
	Entries(ctx context.Context) iter.Seq2[Entry, error]
}

// Entry is the entry of a locker.
type Entry struct {
	Announcement // without TTL
	// Seen is the write time of the entry, by the store's clock. Quiet is the time since Seen.
	Seen  time.Time
	Quiet time.Duration
}

// Announcement names the process of a locker.
type Announcement struct {
	// ID is the locker's random id. The names of its owners begin with it, up to the colon.
	// Entries of lists have it as a whole ([Waiter.ID]).
	ID string
	// Host and PID name the process.
	Host string
	PID  int
	// Service and Version are the application's own name and version; they may be empty.
	Service, Version string
	// Started is when the locker was made, by the clock of its process.
	Started time.Time
	// Protocol is the version of the locker's protocol with a store: [Protocol].
	Protocol int
	// TTL is how long the entry stays.
	TTL time.Duration
}

// Protocol is the version of the layout in the store, and of the requests, that a locker
// of this module version uses. It grows when a process must understand a change to share
// locks with others.
const Protocol = 1
