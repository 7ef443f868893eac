package driver

import (
	"context"
	"time"
)

// Registry is what a [Store] may implement besides: it keeps an entry about each locker
// beside the locks, so that an operator can see which process holds a lock. No lock
// depends on an entry. All methods are safe for concurrent use.
type Registry interface {
	// Announce writes the entry of a locker, in place of an earlier one. The entry
	// stays for [Announcement.TTL]. The store makes one try, and returns when ctx ends.
	Announce(ctx context.Context, a Announcement) error

	// Withdraw deletes the entry of a locker, if there is one.
	Withdraw(ctx context.Context, id string) error
}

// Announcement says to which process a locker belongs.
type Announcement struct {
	// ID is the locker's random id, with which its owners begin, up to the colon.
	// Lists of waiting lockers ([Signal]) have it as a whole.
	ID string
	// Host and PID name the process.
	Host string
	PID  int
	// Service and Version are what the application calls itself; they may be empty.
	Service, Version string
	// Started is when the locker was made, by the clock of its process.
	Started time.Time
	// Protocol is the version of what the locker expects of a store: [Protocol].
	Protocol int
	// TTL is how long the entry stays.
	TTL time.Duration
}

// Protocol is the version of the layout in the store, and of the requests, that a locker
// of this module version uses. It grows when a process must understand a change to share
// locks with others.
const Protocol = 1
