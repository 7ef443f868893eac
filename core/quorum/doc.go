// Package quorum keeps each lock on a majority of independent Redis masters. It
// implements the Redlock algorithm
// (https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/) as a
// [driver.Store]. No node is a master of another node, and nothing is replicated. If
// any minority of the nodes is down, paused or cut off, no lock is lost and no
// caller is delayed. Within a lease, each node that missed its grant and each node whose clock
// was set forward counts to that minority: of three nodes, one of each allow two holders.
//
//	nodes := []redis.UniversalClient{
//		redis.NewClient(&redis.Options{Addr: addrs[0]}),
//		redis.NewClient(&redis.Options{Addr: addrs[1]}),
//		redis.NewClient(&redis.Options{Addr: addrs[2]}), // better five
//	}
//	store, err := quorum.New(nodes)
//	locker, err := core.New(store)
//
// Everything else works as with any store: renewals, the local queue and its
// hand-off, guards, LockAll.
//
// # When to use it
//
// Use a quorum if a failover must not lose a lock, and if some milliseconds more for
// each lock do not matter. A single server with a replica is faster and simpler, but
// its failover can lose the locks that the replica had not received. With either, a
// resource that matters must check the fencing token. docs/quorum.md describes the promises of
// this package, their assumptions, and the limits of every lock.
//
// # What happens
//
// [Store.Acquire] notes the time and asks all nodes at once, for the same owner. It
// returns when a majority has granted the lock; slower nodes finish later. The lease
// counts from the noted time. If no owner can get a majority, the store gives the
// lock up on all nodes and tries again after a random pause. If another owner has a
// majority, the lock is held. Renewal and release need a majority as well.
//
// Each node has a hundredth of the lease for its answer, or longer if the answers of a
// majority take longer ([NodeTimeout]). Before its first vote a process connects to the
// nodes, which is no part of a lease. If a node did not answer lately, the store still asks it but does not wait for it until it
// answers again. In the background the store repeats the release of what such a node
// may still hold.
//
// # Fencing tokens
//
// Each node alone would count tokens differently, and the maximum of the counts can
// go back. Therefore a token is a ballot. The store proposes it to all nodes. A node
// accepts it together with the lock, and only if it is above every token that the
// node has seen. Any two majorities have a node in common, so tokens grow over all
// holders. A proposal starts from the median of the nodes' clocks. The clock of the
// client's machine has no influence.
//
// # Restarts
//
// A node that was restarted, or that lost its data while it ran (FLUSHALL), may have
// forgotten its votes. It has no vote until all leases that it may have forgotten have
// ended. A key on the node, which is lost with its data, says so to all processes: the
// first process that misses it waits for [MaxTTL] by its own clock and then writes it.
// A process that finds the key uses the node at once. Therefore a quorum that is started
// for the first time grants nothing for MaxTTL (30 s by default).
//
// From its first use until [Store.Close] a store looks at each node three times within
// MaxTTL, also while no caller asks for locks.
//
// # Start-up
//
// [New] connects to nothing, because a node that is down must not keep a program
// from starting. [Store.Check] asks all nodes and lists unsafe facts: nodes that are one server
// under two names, nodes that have no vote, and nodes with settings that lose locks.
package quorum
