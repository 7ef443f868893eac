package driver

import (
	"context"
	"time"
)

// KeptFor is for how many lockers, the first of the list, a store with [Turns] keeps a lock that
// became free. When they have had their patience, all others ask.
const KeptFor = 4

// Turns are the methods of a [Store] that gives turns to waiting lockers: it has all of them. Without it lockers learn of a release ([Store.Watch]), and the first that asks
// gets the lock.
//
// Such a store keeps a lock which becomes free for the first [KeptFor] lockers that wait, one after
// the other. Each of them asks for as long as it needs to answer a call ([NewWaiter]), so that
// turns do not go to the processes that are nearest to the store.
//
// A store says by [Limited] which lines it does not serve, and whether it moves no locks. A store that
// makes no hints, or no offers, returns nil from Notify, or Offers.
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
	// the locker into the list, calls those whom the caller displaces (Notify), and says whether
	// the caller may wait ([Reply.Out]). The request has no Owner, and no Late; TTL is for how long at
	// least the store remembers the number. A request without a Waiter enters no locker: by it a
	// holder finds out whether a newer caller has come. Stand returns when ctx ends.
	Stand(ctx context.Context, req AcquireRequest) (Reply, error)

	// Notify calls hear when the locker with the id should ask the store about the lock of a
	// key, which an [Attentive] owner of the locker holds or may hold: another process waits for
	// the lock, or an operator has released it. Without a call, the locker finds that out with its
	// next renewal. The name of an owner is the locker's id, a colon, a number and the mark of
	// Attentive. The store calls hear when a refused request enters its waiting locker into the list
	// of the lock and the list is empty, and when the waiting locker asks again. If there are very
	// many holders it may call hear for none. It also calls hear when a caller comes that is
	// [Newest]: for the holders, and for the locker that was the first of the list, with the number
	// 0 in the name of the owner.
	//
	// A call of hear is only a hint: it can be lost, late, repeated or forged. The locker renews
	// the lease, and believes the answer. An empty key says that hints may have been lost.
	//
	// A locker calls Notify once. It returns at once; hear may be called from any goroutine. The
	// function stop ends the calls, and does not wait for a call of hear. It is nil if the store
	// never makes one.
	Notify(id string, hear func(key, owner string)) (stop func())

	// Offers calls take for each lock that is offered to the locker with the id ([Offer]). ready says
	// whether the store reaches the locker: from true to false its list names say that it takes
	// offers. Calls of take can be missing, late, repeated or in another order.
	//
	// A locker calls Offers once. It returns at once; ready and take may be called from any
	// goroutine. The function stop ends the calls, and does not wait for one under way. It is nil if
	// the store never makes one.
	Offers(id string, ready func(bool), take func(Offer)) (stop func())

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
