// Package driver is for authors of lock stores. Users of locks need only package core, as users
// of database/sql need only that package and not database/sql/driver.
//
// A [Store] keeps one lock for each key: the lock has an owner, a fencing token
// and a lease. Everything else is above the store and the same for every store:
// the queue of local callers, renewal, hand-off, reentrancy, the clean-up after
// a request of unknown outcome. A store must promise three things:
//
//   - Each request is atomic. No other request sees a part of it.
//   - Each request is idempotent for its owner. The store, and the network, may
//     execute it twice, and the second execution changes nothing.
//   - A grant's token is greater than every earlier token of the key.
//
// A store with these promises can be used. What else a store may implement, in the order of its worth:
// [Turns], all of it, for processes at different distances, the newest caller and tickets; [Registry],
// so that an operator sees which process holds a lock; [Limited], if the store never serves some requests.
//
// The package core/driver/drivertest is this contract as a test suite, and core/driver/keystate
// has the rules of a lock for stores that can keep a record for each key. The
// package core/redisstore is the store on Redis, core/quorum is the store on
// several independent Redis servers, core/memstore is the store for tests.
package driver
