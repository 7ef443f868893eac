// Package lock has the locks of one process on a store: for each key a queue of
// waiters, the process's ownership of the key, and the requests between the two. A
// [Table] is what package core makes its Locker of.
//
// The lock of one key is a state machine (lock.go, trying.go, permits.go, places.go, ownership.go,
// acquisition.go). Its methods are the events: a waiter joins, looks or leaves; the
// store has answered, or signals a release; a hold is released; time has passed. An
// event changes only memory, takes the present instant, and writes down what is to be
// done outside ([effects]). The Table calls it with the mutex of the lock's shard
// held, applies the effects, and does everything else after unlocking (table.go):
//
//	waiting.go    waits for the lock, and sends the first waiter's requests
//	releasing.go  gives up holds, and sends releases
//	renewer.go    renews leases, and ends them at their deadlines
//	reaper.go     releases what requests of unknown outcome may still get
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
