// Package httplock is net/http middleware that runs the requests for one
// resource one after the other, in this process and in every other on the same
// store.
//
//	locker, err := core.New(store)
//	debit := core.Serialize(locker, "account/{id}")
//	mux.Handle("POST /accounts/{id}/debit", httplock.Serialize(debit)(handler))
//
// Give http.Server a ReadTimeout and the rule a MaxHold, or read the body before the
// lock (core.ReadBody): a handler that reads a slow body holds its lock meanwhile.
//
// The handler runs under the lease: its context ends with cause core.ErrLost
// when the lock can no longer be trusted, and core.LeaseFromContext finds the
// fencing token for what it writes.
//
// To account/{id} the paths /accounts/42 and /accounts/042 are two accounts. If the
// handler parses numbers they are one: write account/{id:int}, and see core.Form.
// And read in the handler what the template reads: for {query.id} that is
// r.URL.Query().Get("id"). r.FormValue("id") prefers a field of the body, so a
// client could lock one resource and change another.
//
// # Where it goes
//
// Inside the router, around each handler. Around an http.ServeMux, nobody knows
// yet which route will match: the path has no parameters (r.PathValue and
// r.Pattern are empty), and a rule that asks for one refuses every request with
// 500 and says so in the log. With chi, put it into With, or into Use of a
// sub-router whose own pattern has the parameter, and give RawParams, since chi
// hands out parameters still escaped.
//
//	r.With(httplock.Serialize(debit, httplock.RawParams())).Post("/accounts/{id}/debit", handler)
//
// Behind authentication: whoever can name a resource can keep others waiting for
// it.
//
// Inside http.TimeoutHandler, which gives up on a handler without stopping it:
// a lock outside is released while the handler still works.
//
//	http.TimeoutHandler(httplock.Serialize(debit)(handler), 10*time.Second, "")
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
// A client that leaves while its request waits frees its place, and nothing is
// written. net/http notices that only once the body was read: an HTTP/1 request
// with an unread body keeps its place until its wait is over.
//
// A handler has answered when a header is written. One that returns without
// writing anything after its lease was lost has failed, and the client gets the
// 500; one that had answered is left alone, and core.OnLost and the observer
// are told. With core.CheckAnswer the store is asked before the header of a
// success leaves, and what a handler writes after a loss is dropped.
//
// # Idempotent endpoints
//
// Idempotent carries a request out once for each Idempotency-Key (the IETF draft
// of that name), and answers those that are sent again, in whichever process they
// arrive, with the stored response of the first.
//
//	engine, err := idempotency.New(store, idempotency.Scope(core.FromContext(userKey{})))
//	mux.Handle("POST /payments", httplock.Idempotent(engine)(handler))
//
// The store is that of the locks. Scope says whose key it is, so that a client does
// not get another's response by guessing a key: here what authentication in front
// has put under userKey{} into the request's context (context.WithValue). A value
// that is no string takes a function of a few lines; core.RequestFunc shows it.
//
// A handler that moves money says so just before, and gives the service that it
// calls a key of its own, the same in every attempt. If MarkEffect fails it must
// not go on. Without it, a process that dies half-way leaves a request that the
// next one carries out again.
//
//	if err := idempotency.MarkEffect(ctx); err != nil {
//		http.Error(w, "not now", http.StatusServiceUnavailable)
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
//	mux.Handle("POST /accounts/{id}/debit", httplock.Idempotent(engine.With(debit))(handler))
//
// What the handler writes is held back until it is stored, so flushing waits and
// a connection cannot be taken over (Hijack): events and other streams do not go
// behind Idempotent. A response over 1 MiB (MaxResponse) is sent as it comes, and
// cannot be replayed. GET, HEAD and OPTIONS pass.
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
package httplock
