// Package redisstore keeps locks in Redis (7.0 or newer), through
// github.com/redis/go-redis/v9: a single server, one behind Sentinel, or a
// Cluster.
//
//	rdb := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: addrs})
//	store, err := redisstore.New(rdb)
//	locker, err := core.New(store)
//
// # Layout
//
// A lock is a hash at interlock:{KEY}, there only while the lock is held. Its
// expiry is the lease. The owner's field holds the fencing token, and field q
// the lockers that wait. The last token stays at interlock:{KEY}:fence for the
// lease and a minute more; releases are announced on interlock:{KEY}:free. The
// braces put all three into one slot of a Cluster.
//
// # Requests
//
// Every request is one Lua script, idempotent for its owner, so that repeating
// it after a lost reply changes nothing. The requests of many goroutines share
// pipelines: those that come while one is under way go with the next.
//
// The store does not use the connections of the client it is given, but makes
// its own with the same options (address, credentials, TLS, dialer): a pool that
// the application has exhausted must not keep a lease from being renewed, hooks
// that record commands must not see owners and keys, and a lock wants other
// timeouts and no hidden retries.
//
// # Failover
//
// A store with a client of redis.NewFailoverClient asks the sentinels once a second
// which server is the master, and when it is another one closes all its
// connections, also to a former master that still answers. It asks through that
// client: close the client after the store, or the store can make no connection any
// more, and loses its leases. A store with a client of
// redis.NewFailoverClusterClient, or with a function for ClusterSlots, does the same
// by calling that function. On other servers the answers READONLY and NOREPLICAS
// make the store connect anew, at most once a second; on a Cluster errors make it
// ask for the topology.
package redisstore
