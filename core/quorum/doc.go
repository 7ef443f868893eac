// Package quorum keeps each lock on a majority of independent Redis masters: the
// Redlock algorithm
// (https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/), as a
// core.Store. No node is a master of the others, nothing is replicated, and the
// loss of any minority of them, be they down, paused or cut off, loses no lock and
// delays nobody.
//
//	nodes := []redis.UniversalClient{
//		redis.NewClient(&redis.Options{Addr: addrs[0]}),
//		redis.NewClient(&redis.Options{Addr: addrs[1]}),
//		redis.NewClient(&redis.Options{Addr: addrs[2]}), // better five
//	}
//	store, err := quorum.New(nodes)
//	locker, err := core.New(store)
//
// Everything else is that of any store: watchdog, local queue and hand-off,
// guards, LockAll.
//
// # When to use it
//
// When a failover must not lose a lock, and a pause of some milliseconds more for
// each lock is no matter. A single server with a replica is faster and simpler;
// its failover can lose the locks that the replica did not have yet. Whichever it
// is, a resource that matters checks the fencing token: docs/quorum.md says what
// is promised here, under which assumptions, and what no lock promises.
//
// # What happens
//
// Acquire notes the time and asks all nodes at once, for the same owner. It
// returns when a majority has granted the lock; the slower nodes finish behind it.
// The lease counts from that first time. If nobody can have a majority the lock is
// given up on all nodes, and tried again after a random pause. If one owner has a
// majority, it is held. Renewal and release need a majority as well.
//
// A node gets a hundredth of the lease for its answer (NodeTimeout). One that has
// not answered lately is asked only in passing until it does, and what it may still
// hold is released again and again in the background.
//
// # Fencing tokens
//
// Each node would count differently, and the maximum of their counts goes back and
// forth. Here a token is a ballot: proposed to all nodes, and taken by a node
// together with the lock, only if it is above every token that the node has seen.
// Two majorities have a node in common, so tokens grow over all holders. Proposals
// start from the time of the nodes, by the clock in the middle; the clock of this
// machine has no part in it.
//
// # Restarts
//
// A node that was restarted may have forgotten for whom it voted. It has no vote
// for MaxTTL, counted from when this process sees that the node's run id has
// changed, or at first sight from its uptime. So a quorum that has just been started
// grants nothing for MaxTTL (30 s by default), unless AdmitYoung says that this is
// its first start:
//
//	store, err := quorum.New(nodes, quorum.AdmitYoung())
//
// # Start-up
//
// New connects to nothing, since a node that is down must not keep a program from
// starting. Check asks all nodes, and says in words what is unsafe: nodes that are
// one server under two names, that have no vote, or whose settings lose locks.
package quorum
