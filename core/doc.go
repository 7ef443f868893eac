// Package core is the lock of Interlock, and the guard that puts a request
// under it. It imports the standard library only; a Store such as
// core/redisstore keeps the locks.
//
// # Locks
//
// A Locker takes locks by key. Lock waits for whoever holds the key, TryLock does
// not, LockAll takes several keys without deadlock, and Do is lock, run, release:
//
//	lease, err := locker.Lock(ctx, "account/42", core.Wait(time.Second))
//	if err != nil {
//		return err
//	}
//	defer lease.Release(ctx)
//	return debit(lease.Context(), lease.Token())
//
// The Lease is a promise with an end. It is renewed in the background, each time
// a third of it has passed, until it is released; a process that dies stops
// renewing, and the lock is free when the lease is over. If renewing fails for so
// long that somebody else could have the lock soon, the lease is lost, and its
// context ends first, with cause ErrLost: work that runs under Lease.Context
// stops in time. What no clock can promise (a process that was stopped in the
// middle of a write) the fencing token does: each grant's is greater than all
// before it, and a resource that remembers the greatest it has seen refuses the
// rest.
//
// Within a process the callers of a key wait in a queue, first in first out, and
// only the first of them talks to the store; a release hands the lock to the next
// in memory. Across processes a release names those who wait in their order.
//
// # Guards
//
// Serialize makes a rule of a template. An adapter (httplock, ginlock, echolock,
// grpclock) takes the values from the request, and runs the handler under the
// lock:
//
//	debit := core.Serialize(locker, "account/{id}")
//
// A handler that hangs, or reads a slow body, holds its lock: give rules a MaxHold and
// http.Server a ReadTimeout, or read the body before the lock (ReadBody).
//
// One resource must have one key. Where a handler takes several texts for it, 42
// and 042, the placeholder says so by a Form, account/{id:int}; a batch job builds
// the same key with Key.
//
// A value that is missing is an error, never an empty part of a key: everybody
// sharing one lock is the worst that could happen. And a handler runs
// without its lock only where the program asks for that (FailOpen, the Skipper of an
// adapter), or where no route matched, for the framework to answer with its 404.
//
// What to do where a lock is lost all the same: Commit asks the store before a
// transaction is committed, CheckAnswer before a success is answered, and OnLost
// is told who held what, for how long, and why.
//
// # Where to read on
//
// locker.go, lease.go and guard.go are the interface. lock.go shows how a lock is
// taken, queue.go who waits and in which order, tenure.go how a lock passes from
// hand to hand and gets lost, watchdog.go the renewals, and janitor.go what
// happens to requests of which nobody knows whether they arrived.
package core
