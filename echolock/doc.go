// Package echolock is echo middleware that runs the requests for one resource one
// after the other, in this process and in all other processes that use the same
// store.
//
//	locker, err := core.New(store)
//	debit := core.Serialize(locker, "account/{id}")
//	e.POST("/accounts/:id/debit", handler, echolock.Guard(debit))
//
// The same rule in front of a route of another framework makes the same key. The
// requests of both exclude each other.
//
// For the template account/{id}, the paths /accounts/42 and /accounts/042 are two
// accounts. If the handler parses the number, they are one account: write
// account/{id:int} (see [core.Form]). Read the same value in the handler and in
// the template. For {query.id} that is c.QueryParam("id"). c.FormValue or c.Bind
// may take the value from the body.
//
// # In the handler
//
// c.Request() carries the lease's context. It ends with cause [core.ErrLost] when
// the lock can no longer be trusted. [core.LeaseFromContext] returns the lease with
// the fencing token for the handler's writes. Give that context to databases and
// clients:
//
//	ctx := c.Request().Context()
//	lease := core.LeaseFromContext(ctx)
//	err := ledger.Debit(ctx, c.Param("id"), lease.Token())
//
// The compiler accepts no [echo.Context] in its place: it is not a [context.Context].
//
// echo renders an error that the handler returns after the lock is released, as it
// renders the errors of all handlers after their middleware. If the text of an error
// must be made under the lock, call c.Error in the handler.
//
// # Where it goes
//
// On a route, as above. On a group, for all routes of the group; the group's own
// path may have the parameter.
//
//	account := e.Group("/accounts/:id", echolock.Guard(debit))
//	account.POST("/credit", handler)
//	account.POST("/close", handler)
//
// In e.Use, for every route. Each route must have all parameters that the rule
// names; otherwise the middleware refuses its requests with 500 and writes the
// reason to the log. Requests that match no route, which echo answers with 404 or
// 405, pass without a lock, in groups too.
//
// Not in e.Pre, which runs before echo knows the route: there a rule that names a
// parameter refuses every request with 500.
//
// After Recover: when a handler panics, the lock is released before Recover handles
// the panic. After authentication: a client that can name a resource can make other
// clients wait for it. Inside Timeout, which answers for a handler without stopping
// it. Outside, the lock would be released while the handler still works. [Config]
// has a Skipper, as echo's own middleware has.
//
// # The order
//
// From the outside to the inside, with the names of echo's own middleware:
//
//	RequestLogger, Recover, tracing
//	CORS, Gzip
//	Decompress, MeasureBody
//	Timeout
//	KeyAuth and other authentication, authorization, RateLimiter
//	Idempotent (with its lock: idempotency.Under), or Guard
//	ContextTimeout
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
// The key holds parameters in decoded form, as in all frameworks: /accounts/%41 and
// /accounts/A are one resource, although c.Param may return the escaped form. A
// parameter at the end of a route includes slashes (/accounts/:id matches
// /accounts/a/b), for the handler and for the key alike. A template cannot name a
// wildcard (*). A [core.KeyFunc] can read it from the [echo.Context], which Native
// of its [core.Request] returns.
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
// (RFC 9457) of type urn:interlock:problem:<reason> with fixed text.
//
// The middleware returns a refusal as an *[echo.HTTPError]. echo's default error
// handler renders it as described above. An error handler of the application
// receives it like any other error, finds the reason by [errors.As] with a
// *[RefusalError], and may send another response (see [Problem]). Render in [Config]
// replaces the error before an error handler receives it.
//
// If a client leaves while its request waits, its place in the queue becomes free.
// No response is written; access logs show status 499. net/http detects that a
// client left only after the body has been read: an HTTP/1 request with an unread
// body keeps its place until its wait ends.
//
// A handler has answered when a header is written. If a handler returns without
// writing anything after its lease was lost, with an error or without, it has
// failed, and the client gets the 500. If it had answered, the response stays as it
// is; [core.OnLost] and the observer report the loss to the application. With
// [core.CheckAnswer] the middleware asks the store before it sends the header of a
// success, and drops what a handler writes after a loss.
//
// # Idempotent endpoints
//
// [Idempotent] runs the handler once for each Idempotency-Key (the IETF draft of
// that name). A client that sends the request again gets the stored response of the
// first request, from each process.
//
//	engine, err := idempotency.New(store, idempotency.Scope(core.FromContext("user")))
//	e.POST("/payments", handler, echolock.Idempotent(engine))
//
// The engine uses the same store as the locks. [idempotency.Scope] names the owner
// of a key, so that a client cannot read the response of another client by guessing
// its key. Here the owner is the value that authentication in front stored in the
// [echo.Context] by c.Set("user", name). (A plain [context.Context] does not hold
// the values of c.Set.) If the value is not a string, such as the token of a JWT
// middleware, write a short function; [core.RequestFunc] shows one.
//
// A handler that moves money calls [idempotency.MarkEffect] just before it does so.
// It sends a derived key to the service that it calls ([idempotency.DownstreamKey]).
// This key is the same in every attempt. If MarkEffect returns an error, the handler
// must not continue. Without the mark, if a process dies half-way, the next request
// with the key runs the handler again.
//
//	if err := idempotency.MarkEffect(ctx); err != nil {
//		return echo.NewHTTPError(http.StatusServiceUnavailable).SetInternal(err)
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
//	e.POST("/accounts/:id/debit", handler, echolock.Idempotent(engine.With(debit)))
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
// If the handler returns an error, echo's error handler renders it under the claim,
// so that the response that is sent is the response that is stored. Then the
// middleware returns the error as well, for middleware in front. The response is
// committed by then.
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
package echolock
