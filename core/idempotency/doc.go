// Package idempotency makes endpoints idempotent: a client that did not get the
// answer to its payment sends it again with the same idempotency key, and gets
// the answer of the first request instead of a second payment.
//
//	store, err := redisstore.New(rdb)
//	engine, err := idempotency.New(store, idempotency.Scope(core.FromContext("user")))
//	mux.Handle("POST /payments", httplock.Idempotent(engine)(handler))
//
// # What happens to a request
//
// Its key is read (ParseKey), and the record of the key claimed: one hash in the
// store that is claim, lease and stored response in one. Whose key it is says the
// Scope function, so that two clients with the same key are strangers. Then the
// handler runs, its answer is captured and stored, and only then sent: no client
// has an answer that a duplicate would not get.
//
// A duplicate gets the stored answer. One that comes while the first is still
// being carried out is refused (core.ReasonInFlight), or with WaitReplay waits for
// the answer. A request that is another one, but for its key, is refused whatever
// has become of the first (core.ReasonKeyReused).
//
// A client that goes away ends nothing: the handler's context goes on without it,
// and its answer waits for the duplicate. MaxHold bounds that.
//
// A handler that fails (a status of 500 or more, a panic) gives the key back, and
// the duplicate is carried out anew. So do the answers that mean "not now": 401,
// 408, 409, 425, 429, and what a lock underneath refuses. All others are stored.
//
// # When a process dies
//
// The claim has a lease, which is renewed while the handler runs. When the
// process dies it lapses, and the next duplicate takes the record over. The
// handler then runs a second time, and Generation tells it so: what the first one
// had done, it may find half done. A process that was only slow, and wakes up
// with an answer, still counts if nobody has taken over, and otherwise gets the
// other's answer for its client.
//
// For a handler that moves money that is one time too often. There are three ways
// to have at most one effect, and they can be combined:
//
//	if err := idempotency.MarkEffect(ctx); err != nil {
//		return err // do not go on
//	}
//	err := bank.Transfer(ctx, amount, idempotency.DownstreamKey(ctx))
//
// MarkEffect writes to the record that the effect is about to happen. After that
// nobody takes over: when the process dies, duplicates are refused
// (core.ReasonOutcomeUnknown) until the record's retention is over, or an
// operator has found out and says so with Engine.Resolve.
//
// DownstreamKey is a key for the one who has the effect, the same in every
// attempt. If the bank deduplicates by it, any number of attempts is one
// transfer, and nothing stays unknown: the best of the three.
//
// Strict treats every request as marked from its start.
//
// # The promise
//
// One stored answer for each key and retention window. At most one effect with
// Strict, with MarkEffect, or where the bank deduplicates by the derived key;
// otherwise a crash may run the handler again. Never exactly once: nobody can
// promise that across a network. It rests on the store keeping what it was given:
// docs/idempotency.md says which settings of Redis that takes.
//
// # When the store is down
//
// Before the handler: the request is refused (core.ReasonNoRecord), not carried
// out; FailOpen is for endpoints where that is worse. After the handler: its
// answer is sent, since the effect has happened, and is stored in the background
// as soon as the store is back. Until then the claim is not given up, so a
// duplicate is refused.
//
// # Together with a lock
//
// With Under(guard) the handler also runs under the guard's lock: claim, lock,
// handler, and then the answer is stored and the lock released in one round trip.
// A replay takes no lock. This is the form to use.
//
// A Serialize as a middleware of its own behind Idempotent works as well, with a
// round trip more: its refusals are not stored, and after a lost lease the outcome
// counts as unknown. Two conditions: the refusal is rendered as a failure (an HTTP
// status of 400 or more, a code other than OK), as it is by default, and nothing
// between the two has an effect.
//
// # Twice on one request
//
// Where a request passes the middleware twice, on a group and on a route, the inner
// one lets it through and says so once in the log: the record is the outer one's,
// and of the inner one's options only Under counts. A handler that calls another
// endpoint with its own context and key, in the same process, makes a request of
// its own: see New.
//
// # For adapters
//
// An adapter is one call of Engine.Do: the getters of a Call, a function that
// runs the handler and captures its answer, and a Verdict to obey.
package idempotency
