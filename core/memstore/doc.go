// Package memstore keeps locks in the memory of one process, for unit tests and
// for a first try without a server. It is not for production: another process
// has another memory, and so another lock.
//
// A test uses it like any other store, and makes happen what a server does only
// rarely:
//
//	store := memstore.New()
//	locker, err := core.New(store)
//	...
//	store.Take("account/42", time.Minute)    // another process holds the lock
//	store.Expire("account/42")               // the holder's lease ends now
//	store.Intercept(func(r memstore.Request) memstore.Fault {
//		return memstore.Unreachable // the server is gone
//	})
//
// The store keeps locks only. A test of idempotent endpoints needs package
// redisstore, for example on github.com/alicebob/miniredis/v2.
//
// The store reads the time with [time.Now] and starts no goroutine while it is
// idle, so that it works inside a bubble of testing/synctest, where a lease of
// 30 s is over at once. Call the Close of the locker in the bubble: a locker has
// goroutines, and a bubble must not end before them.
package memstore
