package driver

import (
	"context"
	"time"
)

// KeptFor is for how many lockers, the first of the list, a store with [Turns] keeps a lock that
// became free. When they have had their patience, all others ask.
const KeptFor = 4

// Turns are the methods of a [Store] that gives turns to waiting lockers: it has all of them. Without it the first
// locker that asks after a release gets the lock.
//
// Such a store keeps a lock which becomes free for the first [KeptFor] lockers that wait, one after
// the other. Each of them asks for as long as it needs to answer a call ([NewWaiter]), so that
// turns do not go to the processes that are nearest to the store.
//
// It calls the [Attentive] owners of a lock ([Wanted]) when a refused request enters its waiting locker into
// the list of the lock and the list is empty, and when the waiting locker asks again. If there are very many
// holders it may call none. It says by [Limited] which lines it does not serve, whether it makes no offers,
// and whether it moves no locks.
type Turns interface {
	// RoundTrip returns how long a request and its reply take at the least, as measured
	// lately; zero if no request has been answered yet. A locker asks for three of these
	// (and 2 ms), so a store that calls lockers late adds a third of that
	// delay. It is called often.
	RoundTrip() time.Duration

	// Decline takes a locker out of the list of a key: its last caller has left. If the lock
	// is kept for it, the turn goes to the next. A locker that is not taken out is called in vain,
	// which costs the others its patience. Decline returns nil once the store has carried the
	// request out, and also if the store never will. Until then a later request of the locker
	// does not enter the list, since Decline would take it out again. An error says that the
	// store may carry the request out at any time. When ctx ends, Decline returns soon.
	Decline(ctx context.Context, key, waiter string) error

	// Stand is [Store.Acquire] for a caller that the store cannot grant the lock to, as its own
	// locker holds it: the store takes no lock. It numbers a caller that is Newest, enters
	// the locker into the list, calls those whom the caller displaces ([Displaced]), and says whether
	// the caller may wait ([Reply.Out]). The request has no Owner, and no Late; TTL is for how long at
	// least the store remembers the number. A request without a Waiter enters no locker: by it a
	// holder finds out whether a newer caller has come. Stand returns when ctx ends.
	Stand(ctx context.Context, req AcquireRequest) (Reply, error)

	// Space names the set of locks that the store keeps: stores with different names never have
	// a lock in common. It asks no server. A ticket for a lock carries it.
	Space() string
}

// Line says where a caller stands among the callers that wait for a lock.
type Line uint8

const (
	// InTurn is a caller at the end of the queue.
	InTurn Line = iota
	// Newest is a caller that stands before all callers that wait. The store numbers these
	// callers in order of arrival. Earlier callers may wait no longer, and a holder that is
	// Newest too is asked to stop.
	Newest
	// OneWaiter is a caller that waits only while no other such caller waits for the lock.
	OneWaiter
)
