// Package redisstore keeps locks in Redis (7.0 or newer), through
// github.com/redis/go-redis/v9: on a single server, on servers with Sentinel, or on a Cluster.
//
//	rdb := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: addrs})
//	store, err := redisstore.New(rdb)
//	locker, err := core.New(store)
//
// # Layout
//
// A lock is a hash at interlock:{KEY}, which exists while the lock is held, and for a moment
// after a release while the lock is kept, without an owner, for the lockers that wait. The
// expiry of the hash is the lease, or the end of that moment. The owner's field holds the fencing token, and
// the field q holds the lockers that wait. The last token stays at
// interlock:{KEY}:fence for the lease and one minute more. A release calls the next lockers, each
// on its own channel interlock:wanted:ID. interlock:{KEY}:revoked:OWNER says for a
// while that an operator has released the lock of that owner (package core/fleet), and
// interlock:{KEY}:passed:OWNER that a ticket was taken over (core.Ticket). For callers
// with core.Newest and core.OneWaiter there are the hashes interlock:{KEY}:newest and
// interlock:{KEY}:waiter. The braces put all these names into one slot of a Cluster.
//
// A record of package core/idempotency is a hash at interlock:idem:{ID}. Its tombstone, after its
// end, is at interlock:idem:{ID}:gone, and the end of a claim is announced on the channel
// interlock:idem:{ID}:done. docs/how-it-works.md has a table of all keys.
//
// # Requests
//
// Every request is one Lua script. It is idempotent for its owner, so that repeating
// it after a lost reply changes nothing. The requests of many goroutines share
// pipelines: requests that arrive while a pipeline is under way go with the next
// one.
//
// The store does not use the connections of the client that [New] receives. It makes
// its own connections with the same options (address, credentials, TLS, dialer), for
// three reasons. A pool that the application has exhausted must not delay the
// renewal of a lease. Hooks that record commands must not see owners and keys. A
// lock needs other timeouts and no hidden retries.
//
// This package has the requests for records of idempotent endpoints (claim.go, record.go)
// and their scripts (scripts.go). The code that sends requests, and the requests for locks with
// their scripts, are in core/internal/rediswire, which core/quorum uses as well.
//
// # Failover
//
// If the client comes from [redis.NewFailoverClient], the store asks the sentinels
// once a second which server is the master. When the master has changed, the store
// closes all its connections, also those to a former master that still answers. The
// store asks through that client: close the client after the store. If the client is
// closed first, the store can make no new connection and loses its leases. If the
// client comes from [redis.NewFailoverClusterClient], or has a function for
// ClusterSlots, the store does the same by calling that function. With other
// clients, the answers READONLY and NOREPLICAS make the store reconnect, at most
// once a second. On a Cluster, errors make the store ask for the topology.
package redisstore
