// Package httplock is net/http middleware that runs the requests for one resource
// one after the other, in this process and in all other processes that use the same
// store.
//
//	locker, err := core.New(store)
//	debit := core.Serialize(locker, "account/{id}")
//	mux.Handle("POST /accounts/{id}/debit", httplock.Guard(debit)(handler))
//
// A handler that reads a slow body holds its lock meanwhile. Therefore set
// ReadTimeout on [http.Server] and [core.MaxHold] on the rule, or read the body
// before the lock ([core.ReadBody]).
//
// The handler runs under the lease. Its context ends with cause [core.ErrLost] when
// the lock can no longer be trusted. [core.LeaseFromContext] returns the lease with
// the fencing token for the handler's writes.
//
// For the template account/{id}, the paths /accounts/42 and /accounts/042 are two
// accounts. If the handler parses the number, they are one account: write
// account/{id:int} (see [core.Form]). Read the same value in the handler and in the
// template. For {query.id} that is r.URL.Query().Get("id"). r.FormValue("id")
// prefers a field of the body, so a client could lock one resource and change
// another.
//
// # Where it goes
//
// Put the middleware inside the router, around each handler. Around an
// [http.ServeMux] it runs before a route has matched: the request has no path
// parameters (r.PathValue and r.Pattern are empty), and a rule that needs one
// refuses every request with 500 and writes the reason to the log. With chi, pass
// the middleware to With, or to Use of a sub-router with the parameter in its own
// pattern. With chi, add [RawParams]: chi returns parameters in escaped form.
//
//	r.With(httplock.Guard(debit, httplock.RawParams())).Post("/accounts/{id}/debit", handler)
//
// Put it after authentication: a client that can name a resource can make other clients wait
// for it.
//
// Put it inside [http.TimeoutHandler], which answers for a handler without stopping
// it. Outside, the lock would be released while the handler still works.
//
//	http.TimeoutHandler(httplock.Guard(debit)(handler), 10*time.Second, "")
//
// # The order
//
// From the outside to the inside:
//
//	recovery, access log, tracing
//	CORS, compression of responses
//	decompression of requests, MeasureBody
//	http.TimeoutHandler
//	authentication, authorization, rate limits
//	Idempotent (with its lock: idempotency.Under), or Guard
//	what makes a response of an error
//	the handler
//
// A replay does not run the middleware after Idempotent. A right that was revoked since
// then is asked for only in front of it. After Idempotent, the result of a negotiation
// with one client is stored and replayed to another: the CORS header fields of another
// origin, a compressed body. A replay in a content coding that the request does not
// accept is refused (406).
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
// replaces all of these responses. It can log every refusal, where the middleware
// itself logs only failures, once a minute for each kind; the line names no key:
//
//	report := httplock.Render(func(w http.ResponseWriter, r *http.Request, refusal *core.Refusal) {
//		slog.WarnContext(r.Context(), "refused", "refusal", refusal)
//		httplock.Problem(w, r, refusal)
//	})
//	mux.Handle("POST /accounts/{id}/debit", httplock.Guard(debit, report)(handler))
//
// If a client leaves while its request waits, its place in the queue becomes free.
// The middleware writes no response. net/http detects that a client left only after
// the body has been read: an HTTP/1 request with an unread body keeps its place
// until its wait ends.
//
// A handler has answered when it has written a header. If a handler returns without
// writing anything after its lease was lost, it has failed, and the client gets the
// 500. If it had answered, the response stays as it is; [core.OnLost] and the
// observer report the loss to the application. With [core.CheckAnswer] the
// middleware asks the store before it sends the header of a success, and drops what
// a handler writes after a loss.
//
// # Idempotent endpoints
//
// [Idempotent] runs the handler once for each Idempotency-Key (the IETF draft of
// that name). A client that sends the request again gets the stored response of the
// first request, from each process.
//
//	engine, err := idempotency.New(store, idempotency.Scope(core.FromContext(userKey{})))
//	mux.Handle("POST /payments", httplock.Idempotent(engine)(handler))
//
// The engine uses the same store as the locks. [idempotency.Scope] names the owner
// of a key, so that a client cannot read the response of another client by guessing
// its key. Here the owner is the value that authentication in front stored under
// userKey{} in the request's context ([context.WithValue]). If that value is not a
// string, write a short function; [core.RequestFunc] shows one.
//
// A handler that moves money calls [idempotency.MarkEffect] just before it does so.
// It sends a derived key to the service that it calls ([idempotency.DownstreamKey]).
// This key is the same in every attempt. If MarkEffect returns an error, the handler
// must not continue. Without the mark, if a process dies half-way, the next request
// with the key runs the handler again.
//
//	if err := idempotency.MarkEffect(ctx); err != nil {
//		http.Error(w, "not now", http.StatusServiceUnavailable)
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
//	mux.Handle("POST /accounts/{id}/debit", httplock.Idempotent(engine.With(debit))(handler))
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
//
// All refusals, and the answers of the handlers of idempotent endpoints, have the header
// [idempotency.ResultHeader]. The responses of a proxy lack it.
//
// [Transport] is the client side: it gives each request a key, and sends the request again,
// with the same key, until the endpoint has answered. In a handler of Idempotent the key is
// derived from the request, so a second attempt sends the same keys ([idempotency.CallKey]).
package httplock
