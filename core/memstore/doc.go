// Package memstore keeps locks and the records of idempotent requests in the memory of
// one process, for unit tests and for a first try without a server. It is not for
// production: another process has another memory, and so other locks and records.
//
// A test uses a [Store] as any other store, and makes happen what a server does only
// rarely:
//
//	store := memstore.New()
//	locker, err := core.New(store)
//	engine, err := idempotency.New(store, idempotency.Scope(principal))
//	...
//	store.Take("account/42", time.Minute)    // another process holds the lock
//	store.Expire("account/42")               // the holder's lease ends now
//	store.TakeClaims(time.Minute)            // another process carries the requests out
//	store.LapseClaims()                      // the leases of all claims end now
//	store.Empty()                            // the server has lost its data
//	store.Intercept(func(r memstore.Request) memstore.Fault {
//		return memstore.Unreachable // the server is gone
//	})
//
// [Store.Holder] and [Store.Records] show the contents of the store, and
// [Store.Requests] the number of requests. Two processes of a service are two lockers,
// or two engines, on one Store; give each a [Process] if one is to die, to stand still or to
// be cut off. Package core/idempotency/explore does that at each request of a handler.
// Two services that share nothing have a Store each.
//
// The store reads the time with [time.Now] and starts no goroutine, so that it works
// inside a bubble of testing/synctest, where a lease of 30 s takes no time. Close the
// locker and the engine in the bubble: they have goroutines, and a bubble must not end
// before them.
package memstore
