// Package core takes distributed locks, renews them and releases them ([Locker]), and runs a
// request under a lock ([Guard]). It imports only the standard library. A [Store],
// for example package core/redisstore, keeps the locks.
//
// # Locks
//
// A [Locker] takes locks by key. [Locker.Lock] waits while another holder has the
// key. [Locker.TryLock] does not wait. [Locker.LockAll] takes several keys without
// a deadlock. [Locker.Do] locks, runs a function and releases:
//
//	lease, err := locker.Lock(ctx, "account/42", core.Wait(time.Second))
//	if err != nil {
//		return err
//	}
//	defer lease.Release(ctx)
//	return debit(lease.Context(), lease.Token())
//
// [Lead] runs a function on one process at a time, and on another one when the first
// is lost.
//
// A [Lease] has an end. The locker renews it in the background, each time a third
// of it has passed, until the caller releases it. A process that dies stops
// renewing, and the lock is free when the lease has ended. If renewals fail for so
// long that another process could soon get the lock, the lease is lost. Its context
// ends first, with cause [ErrLost], so that work under [Lease.Context] stops in
// time.
//
// No clock covers a process that was stopped in the middle of a write. The fencing
// token ([Lease.Token]) does: the token of each grant is greater than all earlier
// tokens of the key. A resource that remembers the greatest token it has seen
// refuses smaller ones; see package core/fencing.
//
// Within a process the callers of a key wait in a queue, first in first out. Only
// the first of them talks to the store. A release hands the lock to the next one in
// memory. Across processes a release names the waiting processes in their order.
//
// # Guards
//
// [Serialize] makes a [Guard] from a template. An adapter (httplock, ginlock,
// echolock, grpclock) takes the values from the request and runs the handler under
// the lock:
//
//	debit := core.Serialize(locker, "account/{id}")
//
// A handler that hangs, or that reads a slow body, keeps its lock for that time.
// Give the guard a [MaxHold] and http.Server a ReadTimeout, or read the body before
// the lock ([ReadBody]).
//
// One resource must have one key. Where a handler accepts several texts for one
// resource, 42 and 042, the placeholder needs a [Form]: account/{id:int}. A batch
// job builds the same key with [Key].
//
// A missing value is an error. It never becomes an empty part of a key, because
// then all requests without the value would share one lock.
//
// A handler runs without its lock in three cases only: the guard has [FailOpen],
// the Skipper of an adapter says so, or no route matched and the framework answers
// with its 404.
//
// A lock can be lost nevertheless. [Commit] asks the store before a transaction is
// committed. [CheckAnswer] asks it before a success is answered. [OnLost] reports the key, the
// holder, the time since the grant, and the reason ([Loss]).
//
// # The way of a request
//
// A request meets these types from top to bottom. The line above calls the indented lines.
//
//	adapter                      httplock, ginlock, echolock, grpclock
//	  Guard.Do                   one call for each request
//	    Guard.Prepare            Request -> template -> keys
//	    Prepared.Enter           keys -> locks
//	      Locker                 re-entry, or:
//	      lock.Table             the queue of the key (core/internal/lock)
//	        Store.Acquire        one try, sent for the first waiter
//	        Store.Calls          tells the first waiter when its turn comes
//	      Lease                  the hold; its context is the handler's context
//	    the handler
//	    Section.Leave
//	      Lease.Release          hand-off to the next waiter, or:
//	        Store.Release
//	  Refusal                    the client's answer if the handler did not run
//
//	in the background
//	  watchdog                   Store.Renew at a third of the lease; ends lost leases
//	  reaper                     Store.Release for requests of unknown outcome
//	  observe.Observer, OnLost   what happened
//
// # The lock of one key in this process
//
// The lock of a key is in one of four phases. Callers that cannot have the lock at
// once wait in the queue of the key.
//
//	          a caller comes              granted
//	+------+ ---------------> +-----------+ ----------> +------+ ---+ hand-off: the
//	| idle |                  | acquiring |             | held |    | next waiter gets
//	+------+ <--------------- +-----------+ <---------- +------+ <--+ the lock, with
//	   ^     the last waiter        ^        loss, with    |          a new token
//	   |     leaves                 |        waiters       |
//	   |                            |                      | the last hold is
//	   |                            | waiters              | released: no hand-off
//	   |                            |                      v
//	   |                            |               +-----------+
//	   +----------------------------+-------------- | releasing |
//	     no waiters                                 +-----------+
//
// The phases:
//
//   - idle: this process does not hold the lock, and no caller waits for it.
//   - acquiring: the first waiter asks the store. If another process holds the
//     lock, the first waiter sleeps until the store announces a release, the lease
//     of that holder must have ended, or its own wait has. If the store grants a
//     lock that no waiter wants any more, the process releases it.
//   - held: this process holds the lock. The watchdog renews the lease. A hand-off
//     needs a waiter with the same kind of lease, and time on the lease; the lock is
//     not handed off at the end of a turn ([Turn]) if other processes wait.
//   - releasing: the release is on its way to the store. No caller asks for the lock
//     until the store has answered.
//
// Callers that share the lock ([Shared]), and callers that have a permit ([Permits]),
// have places. Places are independent of the phases: while callers of the process have places, the
// lock is idle or acquiring, and its first waiter may ask for another place or for the lock
// itself. A caller joins a shared hold of its process without a request, as long as no caller
// waits for the lock alone.
//
// Loss leads from held to acquiring at once if there are waiters, else to idle. The
// waiters do not wait for the handler that lost the lock.
//
// # Where to read on
//
// docs/how-it-works.md begins with this package in 25 sentences, each with its file.
// locker.go, lease.go, options.go and errors.go are the interface of locks;
// guard.go, template.go, request.go and refusal.go are the interface of guards. Then
// read section.go (the way of a request), lock.go (how a lease is taken) and package
// core/internal/lock, in the order of its package comment. Package core/driver is the interface of
// stores, package core/adapter the interface of adapters, and package
// core/observe the interface of observers. Package core/reason has the reasons for refusals.
//
// # Glossary
//
//   - store: the backend that keeps the locks ([Store]).
//   - key: the text that names a lock. A lock has at most one owner at a time, for the
//     time of a lease.
//   - locker: the part of a process that takes locks from a store ([Locker]).
//   - lease: the right to a lock until a deadline, which a renewal moves ([Lease]).
//   - owner: the text that identifies the holder in the store. A try has an owner that
//     was never granted anything, and that no late try can still use.
//   - ownership: the unbroken possession of a lock by a process, under one owner. It
//     passes from hold to hold.
//   - holder: the caller, and its process, that has the lock.
//   - hold: one entry into a lock. A lock can have several holds (re-entry); it is
//     released with the last hold.
//   - place: a hold at the same time as others, shared or a permit of a number ([Shared],
//     [Permits]). The other kind of hold is exclusive.
//   - waiter: a caller that waits for a lock.
//   - acquisition: the state of an attempt to get a lock, while callers wait.
//   - hand-off: the lock goes from a holder to a waiter of the same process, without
//     a request to the store.
//   - token: the fencing token, a number that grows with each grant of a key.
//   - watchdog: the part of a locker that renews leases and ends them at their
//     deadline. The option [Watchdog] sets the lease that it renews.
//   - orphan: the owner of a request of unknown outcome. The reaper, a part of the
//     locker, releases what an orphan may have taken.
//   - loss: the end of a lease that its holder did not release ([Loss]).
//   - rule: the lock that a kind of request needs, and how it is taken. Its type is
//     [Guard]; comments about the type say guard, and all that users read says rule.
//   - template: a pattern for keys, account/{id:int}. A guard fills it in for each request. int is
//     the form of the placeholder: texts with the same value name one resource ([Form]).
//   - refusal: an answer that a client gets in place of the handler's ([Refusal]).
//   - adapter: a package that connects guards to a framework, such as httplock.
package core
