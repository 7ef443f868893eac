// Package httplock is net/http middleware that runs the requests for one
// resource one after the other, in this process and in every other on the same
// store.
//
//	locker, err := core.New(store)
//	debit := core.Serialize(locker, "account/{id}")
//	mux.Handle("POST /accounts/{id}/debit", httplock.Serialize(debit)(handler))
//
// The handler runs under the lease: its context ends with cause core.ErrLost
// when the lock can no longer be trusted, and core.LeaseFromContext finds the
// fencing token for what it writes.
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
//	503  the store is unreachable, too few replicas, this process is closing
//	500  the lease was lost before the handler answered; the rule and the
//	     route do not fit together
//
// 423 and 503 carry Retry-After where the handler did not run, except after the
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
// are told.
package httplock
