// Package idempotency makes endpoints idempotent. A client that did not get the
// answer to its payment sends the request again with the same idempotency key. It
// then gets the answer of the first request, and not a second payment.
//
//	store, err := redisstore.New(rdb)
//	engine, err := idempotency.New(store, idempotency.Scope(core.FromContext("user")))
//	mux.Handle("POST /payments", httplock.Idempotent(engine)(handler))
//
// # What happens to a request
//
// The [Engine] reads the key and claims the record of the key: one hash in the store
// that is claim, lease and stored response in one. The [Scope]
// function says which principal the key belongs to, so that two clients with the
// same key are independent. Then the handler runs. The engine captures its answer,
// stores it, and only then sends it: no client has an answer that a duplicate would
// not get.
//
// A duplicate gets the stored answer. A duplicate that comes while the first
// request is still being carried out is refused ([reason.InFlight]), or with
// [WaitReplay] waits for the answer. A different request with the same key is
// refused, for any outcome of the first one ([reason.KeyReused]).
//
// A client that goes away ends nothing: the context of the handler goes on without
// the client, and the answer waits for the duplicate. [MaxHold] bounds the handler.
//
// If a handler fails (a status of 500 or more, a panic), the engine gives
// the claim up, and the duplicate is carried out anew. The same holds for answers that mean
// "not now" (401, 402, 408, 409, 423, 425, 429) or "elsewhere" (307, 308), and for what a
// lock underneath refuses. All other answers are stored.
//
// # When a process dies
//
// The claim has a lease, which the engine renews while the handler runs. When the
// process dies, the lease ends, and the next duplicate takes the record over. The
// handler then runs a second time, and [Generation] tells it so: it may find the
// work of the first run half done. A process that was only slow, and wakes up with
// an answer, still counts if no other attempt has taken over. Otherwise its client
// gets the answer of the other attempt.
//
// For a handler that moves money that is one run too many. There are three ways to
// have at most one effect, and they can be combined:
//
//	if err := idempotency.MarkEffect(ctx); err != nil {
//		return err // do not go on
//	}
//	err := bank.Transfer(ctx, amount, idempotency.DownstreamKey(ctx))
//
// [MarkEffect] writes to the record that the effect is about to happen. After that
// no attempt takes the record over. If the process dies, duplicates are refused
// ([reason.OutcomeUnknown]) until the retention of the record has ended, or until
// an operator has found out the outcome and calls [Engine.Resolve].
//
// The clients of this module derive the keys of the handler's calls by themselves ([CallKey]).
// [DownstreamKey] is a key for the service that has the effect, the same in every
// attempt. If the bank deduplicates by it, any number of attempts is one transfer,
// and no outcome stays unknown. This is the best of the three ways.
//
// [Strict] treats every request as marked from its start.
//
// # Work that goes on after the answer
//
// A handler can answer 202 and give the request to a job, by a ticket in a message
// ([HandOver]). The job is a second part of the handler ([Engine.TakeOver]), and its answer is
// the final one. A job that dies leaves what a handler leaves that dies.
//
// # The promise
//
// The engine stores one answer for each key and retention window. There is at most
// one effect with [Strict], with [MarkEffect], or where the bank deduplicates by
// the derived key; otherwise a crash may run the handler again. It is never exactly
// once: no system can promise that across a network. The promise depends on a durable store:
// docs/idempotency-operation.md has the settings of Redis for it.
//
// # When the store is down
//
// Before the handler: the request is refused ([reason.NoRecord]) and not
// carried out. [FailOpen] is for endpoints where that is worse.
//
// After the handler: its answer is sent, because the effect has happened. The
// engine stores it in the background as soon as the store is back. Until then it
// does not give up the claim, so a duplicate is refused.
//
// # Together with a lock
//
// With [Under] the handler also runs under the lock of a [core.Guard]: claim, lock,
// handler, and then the answer is stored and the lock released in one round trip. A
// replay takes no lock. Use this form.
//
// A Guard of an adapter as a separate middleware inside Idempotent works as well, with one
// more round trip: its refusals are not stored, and after a lost lease the outcome counts as
// unknown. There are two conditions. The refusal is rendered as a failure (an HTTP status of
// 400 or more, a code other than OK), which is the default. And no middleware between the two
// has an effect.
//
// # Twice on one request
//
// A request may pass the middleware twice, on a group and on a route. Then the
// inner one lets it through and says so once in the log: the record belongs to the
// outer one, and only [Under] counts of the options of the inner one. The engine identifies
// the request by the URL that the client sent, so http.StripPrefix or a rewrite between the
// two makes no difference. A handler that calls another endpoint with its own context and key,
// in the same process, makes a separate request; see [New].
//
// # Related packages
//
// Each is for one reader:
//
//   - core/idempotency/once does the same for a function and a key, without a request:
//     for consumers of messages, jobs and schedules.
//   - core/idempotency/admin is for operators: the argument of [Engine.Resolve], and the
//     result of [Engine.PendingClaims].
//   - core/idempotency/endpoint is for the authors of adapters. An adapter is one call
//     of [Engine.Do].
//   - core/idempotency/record is for the authors of stores: the [Store], and the
//     transaction of a request.
//
// # Words
//
// To abandon, or to give up, is for a claim: it ends without an answer, and the next
// duplicate is carried out anew. The observer's outcome "released", and [ReleaseInvalid],
// mean that a claim is given up. In all other places, to release is for a lock. The first
// paragraphs of docs/idempotency.md explain record, claim, commit, replay, duplicate, attempt
// and generation.
//
// # The way of a request
//
// A request meets these functions from top to bottom. The line above calls the indented lines.
//
//	adapter                        httplock, ginlock, echolock, grpclock
//	  Engine.Do                    one call for each request (request.go)
//	    Call.Key                   the client's key (endpoint.ParseKey)
//	    Engine.pass                a GET, or no key with Optional: Handler.Pass, and no record
//	    Engine.identify            principal, body, fingerprint -> attempt
//	      Guard.Prepare            with Under: the keys of the locks, before the claim
//	    Engine.claim               Store.Claim, until it is decided (claim.go)
//	      waiter.sleep             a duplicate waits: Store.Await (claim.go)
//	    granted: Engine.run        the handler runs (run.go)
//	      watchdog.begin           from here the lease is renewed (watchdog.go)
//	      Engine.lockOrAbandon     with Under; a refusal gives the claim up (run.go)
//	        Engine.lock            ends the wait when the client leaves
//	          Prepared.Enter       takes the locks; docs/how-it-works.md goes on from
//	                               its sentence about Prepared.Enter
//	      Handler.Run              the adapter's, with the handler inside
//	        MarkEffect             Store.Mark
//	      Engine.conclude          settles the record, also after a panic: the facts
//	                               (conclude.go, and classify in policy.go), the plan that
//	                               settle makes of them (settle.go), and one of:
//	        Engine.commit          Store.Commit, with the lock's release in one round trip:
//	                               CommitRequest.Release -> rediswire Request.DoWithRelease
//	                               -> the lock's release -> one pipeline (pipelines.go)
//	        Engine.abandon         Store.Abandon, likewise
//	        Engine.leaveRecord     neither: the claim ends with its lease
//	      watchdog.end
//	    else: Engine.replay        the stored answer, or a refusal (replay.go)
//	Engine.TakeOver                a job has the ticket of HandOver (handover.go): claim, run
//	                               and conclude as above
//	  Verdict                      the client's answer
//
//	in the background
//	  watchdog                     Store.Extend at a third of the lease; ends the
//	                               contexts of handlers with a lost claim
//	  background                   Store.Commit and Store.Abandon, again, until the
//	                               store confirms them (background.go)
package idempotency
