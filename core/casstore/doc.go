// Package casstore keeps locks on a server that agrees on each change by a majority of its
// members, and that changes a value only if it is as it was read: etcd, ZooKeeper, NATS. It is the
// common part of the modules etcdstore, zkstore and natsstore. Users of locks need one of these, and
// the author of an adapter for another server implements [Server]: package castest says how.
// docs/consensus.md has the promises, the set-up and the costs of such a store.
//
// # Why no lease of the server
//
// A lease, or a session, of such a server ends by the clock of one member. A member that
// was stopped and goes on can end leases that are alive. So nothing here rests on a clock
// of the server, and nothing happens when its leader changes.
//
// # How a lock is taken over
//
// A lock is an entry with its holders, each with the lease and the process that holds it. A
// process renews all its locks of one lease by writing one entry, its beat, and reads the
// locks after it. It trusts a lock from before the last beat that was confirmed, for the
// lease less what two clocks may differ ([driver.Reply.Sent]).
//
// A process that waits notes when it received the first answer that showed a lock and its
// beat as they are. When the lease and some more has passed on its own clock, it writes
// itself into the lock, on condition that neither the lock nor the beat has changed, in one
// transaction. If the holder lives, the lock or the beat has. If both are as they were, the
// holder's last beat was written before the waiting process began to count, so the holder
// has stopped to trust its lock.
//
// # Turns
//
// All stores share the rules ([keystate.Record]), and the record is in the entry of the lock. Its
// instants are relative to the moment of the writing; each process counts them from when it saw the
// entry first. Each locker that waits has an entry, and its revision says where the locker stands in line. So
// lockers that come at once compare nothing and do not collide. The lock has the number of the last
// locker that is gone. A release keeps the lock for the first of the others, and writes a call for
// that process in the same transaction. A process watches its own calls alone, so a release wakes one
// process, however many wait.
//
// The call has the beginning of the line, for the next releases. So a process may know the line in part. If
// it knows no locker to call, it lists the entries. The transaction that calls none compares an entry that
// every new locker writes.
//
// # Offers
//
// The call offers the lock to a locker that takes offers ([driver.Offered]): the locker has it without a
// request, and its first renewal makes it a holder. So a grant costs two transactions, a release and
// the next place in line.
//
// # Requests that come late
//
// A transaction without an answer may be executed at any time. A transaction that takes a lock
// compares the void of its process, and a release writes the void if such a transaction of its
// owner may be on its way: then the late transaction fails. All other transactions compare the
// revision of the entry that they change.
//
// # Locks that are not renewed
//
// The beat of a process speaks for all its locks of a lease, also for a lock that package
// core does not renew any more: at the end of a fixed lease, after MaxHold, after Close. The
// store releases such a lock itself when its lease has ended.
//
// # What dead processes leave
//
// A lock that no process asks for again, names in lines, calls, beats and voids stay when a process
// dies. Each store looks for beats that have not changed for an hour, and deletes them with the
// locks, names, calls and voids that belong to them.
package casstore
