// Package echolock is echo middleware that runs the requests for one resource
// one after the other, in this process and in every other on the same store.
//
//	locker, err := core.New(store)
//	debit := core.Serialize(locker, "account/{id}")
//	e.POST("/accounts/:id/debit", handler, echolock.Serialize(debit))
//
// The same rule in front of another framework's route makes the same key, and
// the requests of both exclude each other.
//
// To account/{id} the paths /accounts/42 and /accounts/042 are two accounts. If the
// handler parses numbers they are one: write account/{id:int}, and see core.Form.
// And read in the handler what the template reads: {query.id} is c.QueryParam("id"), which
// c.FormValue or c.Bind may answer from the body.
//
// # In the handler
//
// c.Request() carries the lease's context: it ends with cause core.ErrLost when
// the lock can no longer be trusted, and core.LeaseFromContext finds the fencing
// token for what the handler writes. Give that context to databases and clients:
//
//	ctx := c.Request().Context()
//	lease := core.LeaseFromContext(ctx)
//	err := ledger.Debit(ctx, c.Param("id"), lease.Token())
//
// An error that the handler returns is rendered by echo after the lock is
// released. So are errors of all handlers rendered, after their middleware; one
// whose text must come from under the lock is rendered by c.Error in the
// handler.
//
// # Where it goes
//
// On a route, as above. On a group, for all its routes; the group's own path may
// have the parameter.
//
//	account := e.Group("/accounts/:id", echolock.Serialize(debit))
//	account.POST("/credit", handler)
//	account.POST("/close", handler)
//
// In e.Use, for every route: each must have all parameters that the rule names,
// or its requests are refused with 500 and the log says so. Requests that match
// no route, which echo answers with 404 or 405, pass through unlocked, in groups
// too.
//
// Not in e.Pre, which runs before echo knows the route: a rule that names a
// parameter refuses every request there with 500.
//
// After Recover, which then finds the lock released when a handler panics, and
// behind authentication: whoever can name a resource can keep others waiting for
// it. Inside Timeout, which gives up on a handler without stopping it: a lock
// outside is released while the handler still works. Config has a Skipper, as
// echo's own middleware do.
//
// # Path parameters
//
// Parameters are keyed decoded, as all frameworks key them: /accounts/%41 and
// /accounts/A are one resource, though c.Param may return them escaped. A
// parameter at the end of a route takes slashes in with it (/accounts/:id
// matches /accounts/a/b), to the handler and to the key alike. A wildcard (*)
// cannot be named in a template; a core.KeyFunc reads it from the echo.Context,
// its Request.Native.
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
// urn:interlock:problem:<reason> with fixed text.
//
// A refusal is returned as an *echo.HTTPError. echo's default error handler
// renders it as said; an application's own sees it like any other error, finds
// the reason by errors.As with a *RefusalError, and may answer with what it
// likes: see Problem. Render in Config replaces it before that.
//
// A client that leaves while its request waits frees its place, and nothing is
// written; access logs show status 499. net/http notices that a client left only
// once the body was read: an HTTP/1 request with an unread body keeps its place
// until its wait is over.
//
// A handler has answered when a header is written. One that returns without
// writing anything after its lease was lost, with an error or without, has
// failed, and the client gets the 500; one that had answered is left alone, and
// core.OnLost and the observer are told. With core.CheckAnswer the store is asked
// before the header of a success leaves, and what a handler writes after a loss is
// dropped.
//
// # Idempotent endpoints
//
// Idempotent carries a request out once for each Idempotency-Key (the IETF draft
// of that name), and answers those that are sent again, in whichever process they
// arrive, with the stored response of the first.
//
//	engine, err := idempotency.New(store, idempotency.Scope(core.FromContext("user")))
//	e.POST("/payments", handler, echolock.Idempotent(engine))
//
// The store is that of the locks. Scope says whose key it is, so that a client does
// not get another's response by guessing a key: here what authentication in front
// has put into the echo.Context by c.Set("user", name). (context.Context does not
// hold what c.Set puts.) A value that is no string, such as the token of a JWT
// middleware, takes a function of a few lines; core.RequestFunc shows it.
//
// A handler that moves money says so just before, and gives the service that it
// calls a key of its own, the same in every attempt. If MarkEffect fails it must
// not go on. Without it, a process that dies half-way leaves a request that the
// next one carries out again.
//
//	if err := idempotency.MarkEffect(ctx); err != nil {
//		return echo.NewHTTPError(http.StatusServiceUnavailable).SetInternal(err)
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
//	e.POST("/accounts/:id/debit", handler, echolock.Idempotent(engine.With(debit)))
//
// What the handler writes is held back until it is stored, so flushing waits and
// a connection cannot be taken over (Hijack): events and other streams do not go
// behind Idempotent. A response over 1 MiB (MaxResponse) is sent as it comes, and
// cannot be replayed. GET, HEAD and OPTIONS pass.
//
// An error that the handler returns is rendered by echo's error handler under the
// claim, so that what is sent is what is stored. Then it is returned as well, for
// middleware in front; the response is committed by then.
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
package echolock
