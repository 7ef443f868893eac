// Package ginlock is gin middleware that runs the requests for one resource one
// after the other, in this process and in all other processes that use the same
// store.
//
//	locker, err := core.New(store)
//	debit := core.Serialize(locker, "account/{id}")
//	r.POST("/accounts/:id/debit", ginlock.Guard(debit), handler)
//
// The same rule in front of a route of another framework makes the same key. The
// requests of both exclude each other.
//
// For the template account/{id}, the paths /accounts/42 and /accounts/042 are two
// accounts. If the handler parses the number, they are one account: write
// account/{id:int} (see [core.Form]). Read the same value in the handler and in
// the template. For {query.id} that is c.Query("id"). c.PostForm or c.ShouldBind
// may take the value from the body.
//
// # In the handler
//
// c.Request carries the lease's context. It ends with cause [core.ErrLost] when the
// lock can no longer be trusted. [core.LeaseFromContext] returns the lease with the
// fencing token for the handler's writes. Give that context to databases and
// clients:
//
//	ctx := c.Request.Context()
//	lease := core.LeaseFromContext(ctx)
//	err := ledger.Debit(ctx, c.Param("id"), lease.Token())
//
// Never pass the *gin.Context itself, unless the gin engine has ContextWithFallback on.
// Without it that context does not end, and hides the lease. [core.Locker.Lock] of a key
// that the request holds already would wait for itself, and returns [core.ErrConfig].
// [core.LeaseFromContext], [core.Check], [core.Commit], [core.Fences],
// [idempotency.MarkEffect] and [idempotency.DownstreamKey] find the lease and the attempt
// of the request in it, but the context given to them does not end with the lease.
//
// # Where it goes
//
// On a route, as above: handlers after the middleware run under the lock, handlers
// before it do not. On a group, for all routes of the group; the group's own path
// may have the parameter.
//
//	account := r.Group("/accounts/:id", ginlock.Guard(debit))
//	account.POST("/credit", handler)
//	account.POST("/close", handler)
//
// In r.Use, for every route registered after it. Each of these routes must have all
// parameters that the rule names; otherwise the middleware refuses its requests with
// 500 and writes the reason to the log. Requests that match no route (c.FullPath is
// empty: NoRoute, NoMethod) pass without a lock.
//
// After [gin.Recovery]: when a handler panics, the lock is released before Recovery
// handles the panic. After authentication: a client that can name a resource can
// make other clients wait for it. Inside a time limit that answers for a handler
// without stopping it, such as [http.TimeoutHandler] around the engine. Outside, the
// lock would be released while the handler still works.
//
// # The order
//
// From the outside to the inside:
//
//	http.TimeoutHandler, around the gin engine
//	gin.Logger, gin.Recovery, tracing
//	CORS, compression of responses
//	decompression of requests, MeasureBody
//	authentication, authorization, rate limits
//	Idempotent (with its lock: idempotency.Under), or Guard
//	what makes a response of c.Errors
//	the handler
//
// A replay does not run the middleware after Idempotent. A right that was revoked since
// then is asked for only in front of it. After Idempotent, the result of a negotiation
// with one client is stored and replayed to another: the CORS header fields of another
// origin, a compressed body. A replay in a content coding that the request does not
// accept is refused (406).
//
// # Path parameters
//
// gin returns parameters in decoded form: /accounts/%41 and /accounts/A are one
// resource and one key. By default a value with an escaped slash (%2F) does not
// reach its route, because gin takes the slash for a separator. It reaches the route
// with
//
//	r.UseRawPath = true // and r.UnescapePathValues left true
//
// With UnescapePathValues off, the key holds the parameter as c.Param returns it,
// escaped. It then differs from the keys of other frameworks. gin decodes raw paths
// by the rules for queries: with UseRawPath (and always with UseEscapedPath), a +
// next to an escaped slash becomes a blank, for the handler and for the key alike.
//
// A template cannot name a catch-all (*path). A [core.KeyFunc] can read it from the
// *gin.Context, which Native of its [core.Request] returns.
//
// # What clients see
//
//	400  a value of the key is missing, empty, malformed or too long; the body
//	     is incomplete or malformed; the fencing tokens are malformed
//	408  the body did not arrive in time (core.ReadBody, core.KeyFunc)
//	409  a newer request has come (core.Newest), before the handler of this one
//	     began, or before it had answered
//	409  the caller of the request holds the lock itself (core.HeldHeader)
//	412  the caller's lock has had another holder since (core.Fenced)
//	413  the body is longer than core.ReadBody or a core.KeyFunc allows
//	423  another request held the lock for as long as the rule waits (5 s), or
//	     until the request's own deadline; or too many requests wait already
//	428  the request has no fencing token of the lock (core.Fenced)
//	429  the principal holds or waits for as many locks as core.PerPrincipal allows
//	503  the store is unreachable; too few replicas have the lock; this
//	     process is closing
//	500  the lease was lost, or MaxHold passed, before the handler answered; the
//	     rule and the route do not fit together; the lock's key in Redis holds
//	     a value that is no lock
//
// Responses 423, 429 and 503 carry Retry-After if the handler did not run. A
// response after the request's own deadline does not. Bodies are problem details
// (RFC 9457) of type urn:interlock:problem:<reason> with fixed text. [Render]
// replaces all of these responses.
//
// A refusal aborts the chain. It is the last element of c.Errors: a private error
// with the *[core.Refusal] as its Meta. Loggers and error handlers in front find
// it there after c.Next. The lock ignores errors that handlers add.
//
// If a client leaves while its request waits, its place in the queue becomes free.
// The middleware writes no response; access logs show status 499. net/http detects
// that a client left only after the body has been read: an HTTP/1 request with an
// unread body keeps its place until its wait ends.
//
// A handler has answered when the header is written: by a body, a flush, or
// AbortWithStatus. c.Status alone is no answer, because gin sends that status later.
// If a handler returns without an answer after its lease was lost, it has failed,
// and the client gets the 500. If it had answered, the response stays as it is;
// [core.OnLost] and the observer report the loss to the application. With
// [core.CheckAnswer] the middleware asks the store before it sends the header of a
// success, and drops what a handler writes after a loss. If an error middleware in
// front makes a response from c.Errors, it writes that response after the release.
//
// # Idempotent endpoints
//
// [Idempotent] runs the handler once for each Idempotency-Key (the IETF draft of
// that name). A client that sends the request again gets the stored response of the
// first request, from each process.
//
//	engine, err := idempotency.New(store, idempotency.Scope(core.FromContext(gin.AuthUserKey)))
//	r.POST("/payments", ginlock.Idempotent(engine), handler)
//
// The engine uses the same store as the locks. [idempotency.Scope] names the owner
// of a key, so that a client cannot read the response of another client by guessing
// its key. Here the owner is the user that [gin.BasicAuth] in front stored in the
// *gin.Context. For another middleware, use the key that it gives to c.Set. (A plain
// [context.Context] does not hold the values of c.Set.) If the value is not a
// string, write a short function; [core.RequestFunc] shows one.
//
// A handler that moves money calls [idempotency.MarkEffect] just before it does so.
// It sends a derived key to the service that it calls ([idempotency.DownstreamKey]).
// This key is the same in every attempt. If MarkEffect returns an error, the handler
// must not continue. Without the mark, if a process dies half-way, the next request
// with the key runs the handler again.
//
//	if err := idempotency.MarkEffect(ctx); err != nil {
//		_ = c.AbortWithError(http.StatusServiceUnavailable, err)
//		return
//	}
//	err := bank.Pay(ctx, idempotency.DownstreamKey(ctx), 100)
//
// The handler's context does not end when its client leaves: the work has begun, and
// the client gets the result when it asks again. The context ends when the claim is
// lost, or after [idempotency.MaxHold] (5 min).
//
// [idempotency.Under] adds a lock around the handler. The engine takes the claim
// first and the lock second. At the end it stores the response and releases the lock
// in one round trip. A replay takes no lock.
//
//	debit := idempotency.Under(core.Serialize(locker, "account/{id}"))
//	r.POST("/accounts/:id/debit", ginlock.Idempotent(engine.With(debit)), handler)
//
// The middleware holds back the handler's output until the response is stored.
// Therefore a flush does not send anything at once, and the handler cannot take over
// the connection (Hijack): do not serve event streams or other streams under
// Idempotent. A response longer than 1 MiB ([idempotency.MaxResponse]) is sent
// without delay and cannot be replayed. GET, HEAD and OPTIONS requests pass through
// and need no key.
//
// The body of a request tells it from others with the same key. If middleware in front
// has read the body, or a part of it, and has not put it back, the request is refused
// (500). For some bodies only [MeasureBody] finds that out.
//
// A handler that writes nothing and leaves errors in c.Errors has failed, with
// status 500: gin alone would send an empty 200. Put a middleware that makes
// responses from errors after Idempotent if those responses are to be stored. A
// middleware in front can still answer for such handlers, but its response is not
// stored.
//
// # What clients of idempotent endpoints see
//
//	400  the Idempotency-Key is missing (unless Optional), malformed or given
//	     twice; there is no principal; the body is incomplete or malformed
//	406  the request was carried out, and its stored response has a content coding
//	     that this request does not accept
//	408  the body did not arrive in time
//	409  the first request is still in flight (Retry-After); or its outcome is
//	     unknown; or it succeeded and its response was too long to be stored
//	410  the key has expired (with Tombstone)
//	413  the body is longer than 1 MiB (MaxRequest)
//	415  the content type belongs to gRPC, gRPC-Web or a stream of Connect
//	422  the key was used for another request: another method, host, path, query
//	     or body, other lock keys, or a gRPC call
//	503  the store is unreachable (Retry-After); the handler did not run
//	500  the claim was lost, or MaxHold passed, before the handler answered
//
// and the refusals of the lock under it. None of these is stored. Bodies are problem
// details as above. Every other response is the handler's own, or the stored one
// with the header Idempotent-Replayed: true, and then with the same status, headers
// and bytes.
//
// The engine stores responses that settle the request: 2xx, 3xx and 4xx, except 307, 308, 401,
// 402, 408, 409, 423, 425, 429 and 499. After such a status, a 5xx or a panic, a retry runs the
// handler again, unless the handler had marked its effect. GraphQL and JSON-RPC answer 200 when a
// call fails: there [idempotency.StoreIf] tells failures by their body. For a gRPC server there
// are interceptors (package grpclock). A replay leaves out headers that belong to one response
// only: Set-Cookie, Date, hop-by-hop fields and the fields that Connection names, ids of traces
// and requests, rate limits. [idempotency.ReplayHeaders] replaces that rule with a list. Headers
// that middleware in front sets are not stored unless the handler changes them: the middleware
// sets them on each response.
package ginlock
