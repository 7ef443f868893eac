// Package reason has the reasons for which a request gets an answer of a guard, or of an
// idempotent endpoint, in place of the handler's. Adapters choose the status by the reason;
// applications read it from core.Refusal to answer in their own way.
package reason

// Reason says why a request was refused. The strings are stable: clients see them
// in urn:interlock:problem:<reason> and in the ErrorInfo of gRPC. The table of refusals in
// docs/use.md has a row and an anchor for each.
type Reason string

// The reasons of a guard, with the HTTP status and the gRPC code that the adapters give them.
const (
	// BadKey (400, INVALID_ARGUMENT): a value of the key is missing, empty,
	// malformed, not of its core.Form or given twice, or the key is longer than 512
	// bytes.
	BadKey Reason = "bad-key"
	// BodyTooLarge (413, RESOURCE_EXHAUSTED): the body is longer than the
	// limit of the guard (core.ReadBody), of its core.KeyFunc or of the idempotent
	// endpoint.
	BodyTooLarge Reason = "body-too-large"
	// BodyIncomplete (400, INVALID_ARGUMENT): the body broke off, or is not
	// encoded as it says.
	BodyIncomplete Reason = "body-incomplete"
	// BodyTimeout (408, DEADLINE_EXCEEDED): the body did not come within the
	// time that the server gives it.
	BodyTimeout Reason = "body-timeout"
	// Held (423, ABORTED): the lock was held elsewhere for as long as the
	// guard waits (core.Wait).
	Held Reason = "held"
	// Full (429, RESOURCE_EXHAUSTED): all permits were taken for as long as the
	// guard waits (core.AtMost).
	Full Reason = "full"
	// QueueFull (423, ABORTED): too many requests wait for the lock already
	// (core.MaxWaiters, core.OneWaiter).
	QueueFull Reason = "queue-full"
	// Superseded (409, ABORTED): a newer request has come (core.Newest). Either this one had not
	// begun, or its handler stopped before it had answered.
	Superseded Reason = "superseded"
	// HeldByCaller (409, ABORTED): the caller of the request, which waits for its answer, holds
	// the lock that the request needs (core.HeldHeader). No later try of the caller gets it.
	HeldByCaller Reason = "held-by-caller"
	// StaleToken (412, FAILED_PRECONDITION): the lock that the request was sent under has had
	// another holder since (core.Fenced), or an operator has released the lock that a message
	// came with (core.WithTicket). No later try with the token, or the ticket, passes.
	StaleToken Reason = "stale-token"
	// TokenMissing (428, FAILED_PRECONDITION): the request has no fencing token of the lock that
	// core.Fenced asks for.
	TokenMissing Reason = "token-missing"
	// TokenMalformed (400, INVALID_ARGUMENT): the field core.FencesHeader of the request is
	// malformed, is there twice or is too long; or a ticket of a message cannot be read.
	TokenMalformed Reason = "token-malformed"
	// PrincipalLimit (429, RESOURCE_EXHAUSTED): the principal of the request
	// holds, or waits for, as many locks as core.PerPrincipal allows.
	PrincipalLimit Reason = "principal-limit"
	// Deadline (423, DEADLINE_EXCEEDED): the request's own deadline passed
	// before it had the lock, or its idempotency record.
	Deadline Reason = "deadline"
	// Canceled (nothing is written, CANCELED): the client went away before its
	// request had the lock.
	Canceled Reason = "canceled"
	// Unavailable (503, UNAVAILABLE): the store could not be reached, or had not answered for
	// 250 ms when the caller gave up.
	Unavailable Reason = "unavailable"
	// NotReplicated (503, UNAVAILABLE): too few replicas acknowledged the
	// lock.
	NotReplicated Reason = "not-replicated"
	// KeyOccupied (500, INTERNAL): the key of the lock has a value in the
	// store that is not a lock (core.ErrKeyOccupied). It does not pass by itself.
	KeyOccupied Reason = "key-occupied"
	// Closing (503, UNAVAILABLE): this process is shutting down.
	Closing Reason = "closing"
	// Lost (500, ABORTED): the lease was lost before the answer. The work of the handler
	// may overlap with another holder.
	Lost Reason = "lost"
	// MaxHold (500, ABORTED): like Lost, because core.MaxHold was reached.
	MaxHold Reason = "max-hold"
	// Misconfigured (500, INTERNAL): the guard and the route do not fit
	// together, or middleware in front has read the body that a guard or an
	// idempotent endpoint needs.
	Misconfigured Reason = "misconfigured"
	// Internal (500, INTERNAL): a core.KeyFunc or core.RequestFunc failed with its own
	// error.
	Internal Reason = "internal"
)

// The reasons of an idempotent endpoint, likewise. It also refuses for reasons of a guard
// ([BodyTooLarge], [Closing] and others).
const (
	// KeyMissing (400, INVALID_ARGUMENT): the request has no idempotency key,
	// and the endpoint wants one.
	KeyMissing Reason = "idempotency-key-missing"
	// KeyMalformed (400, INVALID_ARGUMENT): the request has an empty or
	// malformed idempotency key, a key of more than 255 characters, or two keys.
	KeyMalformed Reason = "idempotency-key-malformed"
	// NoPrincipal (400, INVALID_ARGUMENT): the Scope function of the endpoint
	// found no principal that the key could belong to.
	NoPrincipal Reason = "idempotency-no-principal"
	// ContentType (415, INVALID_ARGUMENT): the content type of the request belongs to a
	// protocol inside HTTP that answers with status 200 also when a call fails (gRPC,
	// gRPC-Web, streams of Connect). The endpoint cannot tell which answers to store.
	ContentType Reason = "idempotency-content-type"
	// KeyReused (422, FAILED_PRECONDITION): the key was used for another
	// request.
	KeyReused Reason = "idempotency-key-reused"
	// InFlight (409, ABORTED): a request with the key is being carried out at
	// this moment.
	InFlight Reason = "idempotency-in-flight"
	// OutcomeUnknown (409, DATA_LOSS): a request with the key was begun, and
	// it is not known how it ended. It is not carried out again.
	OutcomeUnknown Reason = "idempotency-outcome-unknown"
	// ResponseUnavailable (409, DATA_LOSS): a request with the key was
	// carried out, and its response could not be stored.
	ResponseUnavailable Reason = "idempotency-response-unavailable"
	// ResponseTooLarge (500, INTERNAL): the response is longer than
	// idempotency.MaxResponse, and the handler has a transaction (record.Enlist), which was rolled
	// back. Every retry ends the same way: raise the limit.
	ResponseTooLarge Reason = "idempotency-response-too-large"
	// RolledBack (503, UNAVAILABLE): the database did not commit the
	// transaction of the handler (a serialization failure, a lock that was lost). It
	// has had no effect, and the client may try again with the same key.
	RolledBack Reason = "idempotency-rolled-back"
	// NotAcceptable (406, FAILED_PRECONDITION): a request with the key was carried out,
	// and its stored response has a content coding (gzip) that this request does not
	// accept. With the Accept-Encoding of the first request the client gets it.
	NotAcceptable Reason = "idempotency-not-acceptable"
	// KeyExpired (410, FAILED_PRECONDITION): the key was used so long ago
	// that the response is gone. The endpoint still remembers that it was used.
	KeyExpired Reason = "idempotency-key-expired"
	// NoRecord (503, UNAVAILABLE): the server cannot find out whether the
	// request was carried out before.
	NoRecord Reason = "idempotency-unavailable"
)

// Text returns what a client may read about the reason. It is a fixed text, the
// same in every protocol.
func (r Reason) Text() string {
	switch r {
	case BadKey:
		return "The request does not name the resource to lock."
	case BodyTooLarge:
		return "The request body is too large."
	case BodyIncomplete:
		return "The request body did not arrive whole, or is malformed. Nothing was done."
	case BodyTimeout:
		return "The request body did not arrive in time. Nothing was done."
	case Misconfigured:
		return "The server is not set up for this request. Nothing was done."
	case Held:
		return "The resource is locked by another request. Nothing was done."
	case Deadline:
		return "The time for the request had ended before it could be carried out. Nothing was done."
	case QueueFull:
		return "Too many requests wait for the resource. Nothing was done."
	case Superseded:
		return "A newer request for the resource has come, and takes the place of this one."
	case HeldByCaller:
		return "The resource is locked by the caller of this request, which waits for its answer. Nothing was done."
	case StaleToken:
		return "The request was sent under a lock that its sender has lost since. Nothing was done."
	case TokenMissing:
		return "The request does not carry the fencing token of the lock on the resource. Nothing was done."
	case TokenMalformed:
		return "The fencing tokens of the request are malformed. Nothing was done."
	case Full:
		return "As many requests as may are using the resource. Nothing was done."
	case PrincipalLimit:
		return "Too many requests of the same caller hold or wait for locks. Nothing was done."
	case Canceled:
		return "The request was canceled while it waited for the resource. Nothing was done."
	case Unavailable, NotReplicated:
		return "The resource cannot be locked at the moment. Nothing was done."
	case KeyOccupied:
		return "The resource cannot be locked. Nothing was done."
	case Closing:
		return "The server is shutting down. Nothing was done."
	case KeyMissing:
		return "The request needs an idempotency key. Nothing was done."
	case KeyMalformed:
		return "The idempotency key is malformed. Accepted is one key of 1 to 255 characters: " +
			"letters, digits and !#$%&'*+-.^_`|~:/=@ as they are, or any visible ASCII and spaces in double quotes, " +
			"with a backslash before a quote or a backslash. Nothing was done."
	case NoPrincipal:
		return "The request does not say whose idempotency key it has. Nothing was done."
	case ContentType:
		return "The endpoint does not carry out idempotent requests of this content type. Nothing was done."
	case KeyReused:
		return "The idempotency key was used for another request. Nothing was done."
	case InFlight:
		return "A request with the same idempotency key is being carried out."
	case OutcomeUnknown:
		return "A request with the same idempotency key was begun, and its outcome is unknown."
	case ResponseUnavailable:
		return "A request with the same idempotency key was carried out, and its response was not kept."
	case NotAcceptable:
		return "A request with the same idempotency key was carried out, and its response was kept in a content coding " +
			"that this request does not accept (Accept-Encoding)."
	case RolledBack:
		return "The transaction of the request was rolled back. Nothing was done; the request can be sent again."
	case ResponseTooLarge:
		return "The response is longer than the server can store, and the transaction of the request was rolled back. Nothing was done."
	case KeyExpired:
		return "The idempotency key was used before, and its response is no longer kept. Nothing was done."
	case NoRecord:
		return "It cannot be found out at the moment whether the request was carried out before. Nothing was done."
	case Lost, MaxHold:
		return "The lock on the resource was lost while the request was carried out. Its outcome is unknown."
	}
	// The rest is the server's fault, of a rule or of an idempotent endpoint.
	return "The server cannot handle the request because of an error of its own. Nothing was done."
}
