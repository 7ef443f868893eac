// Package ginlock is gin middleware that runs the requests for one resource one
// after the other, in this process and in every other on the same store.
//
//	locker, err := core.New(store)
//	debit := core.Serialize(locker, "account/{id}")
//	r.POST("/accounts/:id/debit", ginlock.Serialize(debit), handler)
//
// The same rule in front of another framework's route makes the same key, and
// the requests of both exclude each other.
//
// To account/{id} the paths /accounts/42 and /accounts/042 are two accounts. If the
// handler parses numbers they are one: write account/{id:int}, and see core.Form.
// And read in the handler what the template reads: {query.id} is c.Query("id"), which
// c.PostForm or c.ShouldBind may answer from the body.
//
// # In the handler
//
// c.Request carries the lease's context: it ends with cause core.ErrLost when
// the lock can no longer be trusted, and core.LeaseFromContext finds the fencing
// token for what the handler writes. Give that context to databases and clients:
//
//	ctx := c.Request.Context()
//	lease := core.LeaseFromContext(ctx)
//	err := ledger.Debit(ctx, c.Param("id"), lease.Token())
//
// A *gin.Context given as the context does instead only if the engine has
// ContextWithFallback on; otherwise its Done is nil and it never ends.
//
// # Where it goes
//
// On a route, as above: what stands after it runs under the lock, what stands
// before it does not. On a group, for all its routes; the group's own path may
// have the parameter.
//
//	account := r.Group("/accounts/:id", ginlock.Serialize(debit))
//	account.POST("/credit", handler)
//	account.POST("/close", handler)
//
// In r.Use, for every route registered after it: each must have all parameters
// that the rule names, or its requests are refused with 500 and the log says so.
// Requests that match no route (c.FullPath is empty: NoRoute, NoMethod) pass
// through unlocked.
//
// After gin.Recovery, which then finds the lock released when a handler panics,
// and behind authentication: whoever can name a resource can keep others waiting
// for it. Inside a time limit that gives up on a handler without stopping it, such
// as http.TimeoutHandler around the engine: a lock outside is released while the
// handler still works.
//
// # Path parameters
//
// gin hands out parameters decoded, so that /accounts/%41 and /accounts/A are
// one resource and one key. A value with an escaped slash (%2F) does not reach
// its route by default, since gin takes it for a separator; it does with
//
//	r.UseRawPath = true // and r.UnescapePathValues left true
//
// With UnescapePathValues off, parameters are keyed as c.Param returns them,
// escaped, and differ from those of other frameworks. gin decodes raw paths by
// the rules for queries: with UseRawPath (and with UseEscapedPath always) a +
// next to an escaped slash is a blank, to the handler and to the key alike.
//
// A catch-all (*path) cannot be named in a template; a core.KeyFunc reads it
// from the *gin.Context, its Request.Native.
//
// # What clients see
//
//	400  a value of the key is missing, empty, malformed or too long
//	413  a core.KeyFunc met a body above its limit
//	423  locked by another request for as long as the rule waits (5 s), or
//	     until the request's own deadline; too many wait already
//	429  the caller holds or waits for as many locks as core.PerPrincipal allows
//	503  the store is unreachable, too few replicas, this process is closing
//	500  the lease was lost before the handler answered; the rule and the
//	     route do not fit together; the lock's key in Redis is no lock
//
// 423, 429 and 503 carry Retry-After where the handler did not run, except after the
// request's own deadline. Bodies are problem details (RFC 9457) of type
// urn:interlock:problem:<reason> with fixed text; Render replaces them all.
//
// A refusal aborts the chain and is the last of c.Errors, a private error whose
// Meta is the *core.Refusal: loggers and error handlers in front find it there
// after c.Next. Errors that handlers add are their own, and mean nothing to the
// lock.
//
// A client that leaves while its request waits frees its place. Nothing is
// written by the middleware; access logs show status 499. net/http notices that
// a client left only once the body was read: an HTTP/1 request with an unread
// body keeps its place until its wait is over.
//
// A handler has answered when the header is written: by a body, a flush, or
// AbortWithStatus, but not by c.Status alone, which gin sends later. One that
// returns without an answer after its lease was lost has failed, and the client
// gets the 500; one that had answered is left alone, and core.OnLost and the
// observer are told. With core.CheckAnswer the store is asked before the header of
// a success leaves, and what a handler writes after a loss is dropped. What an
// error middleware in front makes of c.Errors is written after the release.
//
// # Idempotent endpoints
//
// Idempotent carries a request out once for each Idempotency-Key (the IETF draft
// of that name), and answers those that are sent again, in whichever process they
// arrive, with the stored response of the first.
//
//	engine, err := idempotency.New(store, idempotency.Scope(core.FromContext(gin.AuthUserKey)))
//	r.POST("/payments", ginlock.Idempotent(engine), handler)
//
// The store is that of the locks. Scope says whose key it is, so that a client does
// not get another's response by guessing a key: here the user that gin.BasicAuth in
// front has put into the *gin.Context. For another middleware it is the key that it
// gives to c.Set. (context.Context does not hold what c.Set puts.) A value that is
// no string takes a function of a few lines; core.RequestFunc shows it.
//
// A handler that moves money says so just before, and gives the service that it
// calls a key of its own, the same in every attempt. If MarkEffect fails it must
// not go on. Without it, a process that dies half-way leaves a request that the
// next one carries out again.
//
//	if err := idempotency.MarkEffect(ctx); err != nil {
//		_ = c.AbortWithError(http.StatusServiceUnavailable, err)
//		return
//	}
//	err := bank.Pay(ctx, idempotency.DownstreamKey(ctx), 100)
//
// The handler's context does not end with its client: a client that leaves has
// begun something, and gets the result when it asks again. It ends when the claim
// is lost, or after MaxHold (5 min).
//
// Under puts a lock around the handler: first the claim, then the lock, and in the
// end the response is stored and the lock released in one round trip. A replay
// takes no lock.
//
//	debit := idempotency.Under(core.Serialize(locker, "account/{id}"))
//	r.POST("/accounts/:id/debit", ginlock.Idempotent(engine.With(debit)), handler)
//
// What the handler writes is held back until it is stored, so flushing waits and
// a connection cannot be taken over (Hijack): events and other streams do not go
// behind Idempotent. A response over 1 MiB (MaxResponse) is sent as it comes, and
// cannot be replayed. GET, HEAD and OPTIONS pass.
//
// Handlers that write nothing and leave errors in c.Errors have failed, with 500:
// gin alone would make an empty 200 of it. A middleware that makes answers of
// errors goes behind Idempotent if they are to be stored; one in front may still
// answer for such handlers.
//
// # What clients of idempotent endpoints see
//
//	400  no Idempotency-Key, unless it is Optional; a malformed one, or two; no
//	     principal
//	409  the first request is still in flight (Retry-After); its outcome is not
//	     known; it was carried out, and the response was too long to be kept
//	410  the key has expired (with Tombstone)
//	413  the body is longer than 1 MiB (MaxRequest)
//	422  the key was used for another request: another method, path, query or
//	     body, or in gRPC
//	503  the store is unreachable (Retry-After); nothing was done
//	500  the claim was lost before the handler answered
//
// and what the lock under it refuses. None of these is stored. Bodies are problem
// details as above. Everything else is the handler's answer, or with
// Idempotent-Replayed: true the stored one: same status, headers and bytes.
//
// Stored is what settles the request: 2xx, 3xx and 4xx, except 401, 408, 409, 425
// and 429. After those, a 5xx or a panic a retry runs the handler again, unless it
// had marked its effect. Not replayed are headers that belong to one response:
// Set-Cookie, Date, hop-by-hop fields and those that Connection names, ids of
// traces and requests, rate limits; ReplayHeaders is a list of one's own. Headers
// from middleware in front are its own affair in each response.
package ginlock
