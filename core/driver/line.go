package driver

import "context"

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

// Queuer is what a [Store] implements that serves the callers of all lockers by their [Line].
// A store without it is never asked for another line than [InTurn].
type Queuer interface {
	// Stand is [Store.Acquire] for a caller that the store cannot grant the lock to, as its own
	// locker holds it: the store takes no lock. It numbers a caller that is Newest, enters
	// the locker into the list, tells those whom the caller displaces ([Notifier]), and says whether
	// the caller may wait ([Reply.Out]). The request has no Owner, and no Late; TTL is for how long at
	// least the store remembers the number. A request without a Waiter enters no locker: by it a
	// holder finds out whether a newer caller has come. Stand returns when ctx ends.
	Stand(ctx context.Context, req AcquireRequest) (Reply, error)
}
