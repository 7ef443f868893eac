// Package lock has the locks of one process on a store: for each key a queue of
// waiters, the process's ownership of the key, and the requests between the two. A
// [Table] is what package core makes its Locker of.
//
// A shard locks, a lock changes. The lock of one key is a state machine, and the events are
// among its methods: a waiter joins, looks or leaves; the store has answered, or calls;
// a hold is released; time has passed. An event changes only memory, takes the present
// instant, and records the actions to take outside ([effects]). The exported method of the Table
// for an event has the name of the event (Table.Release, Waiter.release). shard.event takes the
// mutex, runs the event, and carries the effects out (table.go).
//
// One lock passes through these files in this order:
//
//	waiter.go     the waiter: what a caller asks for, and later the hold; the queue of waiters
//	table.go      the Table, its shards, and what happens around an event
//	waiting.go    Table.Acquire: waits for the lock, and sends the first waiter's requests
//	lock.go       the lock, and the events of a caller that waits
//	trying.go     the events of a request for the lock (acquisition.go: their state)
//	ownership.go  the locks of the process in the store; the grant and the hand-off
//	releasing.go  gives up holds, and sends releases
//
// Besides:
//
//	holding.go    what a holder asks while it has the lock
//	places.go     shared holds and permits; permits.go: who asks for a permit
//	watchdog.go   renews leases, and ends them at their deadlines
//	attention.go  callbacks to a holder: others wait
//	line.go       callers that go before others, or do not wait after another
//	called.go     the calls of the store: the turn of this process, an offer, others wait
//	offers.go     takes the lock by the message of a release (anchor.go: the state of offers)
//	handover.go   hands the lock over to a ticket, and takes it over by one
//	reaper.go     releases the locks that requests of unknown outcome may still get
//	declining.go  leaves the list of those waiting
//	registry.go   keeps the entry of the process in the store
//	closing.go    ends waits and holds when the Table closes
//	stats.go      counts and states of the Table; errors.go: its errors
//
// The phases:
//
//	          a waiter joins              granted
//	+------+ ---------------> +-----------+ ----------> +------+ ---+ hand-off
//	| idle |                  | acquiring |             | held |    |
//	+------+ <--------------- +-----------+ <---------- +------+ <--+
//	   ^      the last waiter       ^          lost        |
//	   |      leaves                |                      | released
//	   |                            | waiters              v
//	   |                            |               +-----------+
//	   +----------------------------+-------------- | releasing |
//	     no waiters                                 +-----------+
package lock
