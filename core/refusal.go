package core

import (
	"context"
	"errors"

	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/internal/reason"
)

// Refusal says that a request gets an answer of the guard's in place of the
// handler's. An adapter renders it by its Reason, from one table for its protocol.
type Refusal struct {
	// Reason decides the status.
	Reason Reason
	// Ran says that the handler ran, so that its effect may have happened. The
	// answer must not invite the client to try again.
	Ran bool
	// Rule is the name of the guard that refused ([Guard.Name]).
	Rule string
	// Err is the error behind the refusal. Its text may contain the key and
	// addresses of servers: never show it to a client, and log [Refusal.LogError]
	// instead.
	Err error `json:"-"`

	keys []string // if they were made
}

// Retryable reports whether the client may send the same request again a little
// later: the handler did not run, and the reason passes by itself.
func (r *Refusal) Retryable() bool {
	if r.Ran {
		return false
	}
	switch r.Reason {
	case ReasonHeld, ReasonFull, ReasonQueueFull, ReasonPrincipalLimit, ReasonUnavailable, ReasonClosing, ReasonNotReplicated,
		reason.InFlight, reason.NoRecord, reason.RolledBack:
		return true
	}
	return false
}

// Reason says why a request was refused. The strings are stable: clients see them
// in urn:interlock:problem:<reason> and in the ErrorInfo of gRPC. Package
// idempotency has more reasons, for requests to idempotent endpoints.
type Reason string

// The reasons, with the HTTP status and the gRPC code that the adapters give them.
const (
	// ReasonBadKey (400, INVALID_ARGUMENT): a value of the key is missing, empty,
	// malformed, not of its [Form] or given twice, or the key is longer than 512
	// bytes.
	ReasonBadKey Reason = "bad-key"
	// ReasonBodyTooLarge (413, RESOURCE_EXHAUSTED): the body is longer than the
	// limit of the guard ([ReadBody]), of its [KeyFunc] or of the idempotent
	// endpoint.
	ReasonBodyTooLarge Reason = "body-too-large"
	// ReasonBodyIncomplete (400, INVALID_ARGUMENT): the body broke off, or is not
	// encoded as it says.
	ReasonBodyIncomplete Reason = "body-incomplete"
	// ReasonBodyTimeout (408, DEADLINE_EXCEEDED): the body did not come within the
	// time that the server gives it.
	ReasonBodyTimeout Reason = "body-timeout"
	// ReasonHeld (423, ABORTED): the lock was held elsewhere for as long as the
	// guard waits ([Wait]).
	ReasonHeld Reason = "held"
	// ReasonFull (429, RESOURCE_EXHAUSTED): all permits were taken for as long as the
	// guard waits ([AtMost]).
	ReasonFull Reason = "full"
	// ReasonQueueFull (423, ABORTED): too many requests wait for the lock already
	// ([MaxWaiters]).
	ReasonQueueFull Reason = "queue-full"
	// ReasonPrincipalLimit (429, RESOURCE_EXHAUSTED): the principal of the request
	// holds, or waits for, as many locks as [PerPrincipal] allows.
	ReasonPrincipalLimit Reason = "principal-limit"
	// ReasonDeadline (423, DEADLINE_EXCEEDED): the request's own deadline was over
	// before it had the lock.
	ReasonDeadline Reason = "deadline"
	// ReasonCanceled (nothing is written, CANCELED): the client went away before its
	// request had the lock.
	ReasonCanceled Reason = "canceled"
	// ReasonUnavailable (503, UNAVAILABLE): the store could not be reached.
	ReasonUnavailable Reason = "unavailable"
	// ReasonNotReplicated (503, UNAVAILABLE): too few replicas acknowledged the
	// lock.
	ReasonNotReplicated Reason = "not-replicated"
	// ReasonKeyOccupied (500, INTERNAL): the key of the lock has a value in the
	// store that is not a lock ([ErrKeyOccupied]). It does not pass by itself.
	ReasonKeyOccupied Reason = "key-occupied"
	// ReasonClosing (503, UNAVAILABLE): this process is shutting down.
	ReasonClosing Reason = "closing"
	// ReasonLost (500, ABORTED): the lease was lost before the answer. What the
	// handler did may overlap with another holder.
	ReasonLost Reason = "lost"
	// ReasonMaxHold (500, ABORTED): like ReasonLost, because [MaxHold] was reached.
	ReasonMaxHold Reason = "max-hold"
	// ReasonMisconfigured (500, INTERNAL): the guard and the route do not fit
	// together, or middleware in front has read the body that a guard or an
	// idempotent endpoint needs.
	ReasonMisconfigured Reason = "misconfigured"
	// ReasonInternal (500, INTERNAL): a [KeyFunc] or [RequestFunc] failed for a
	// reason of its own.
	ReasonInternal Reason = "internal"
)

// ReasonOf returns the reason for an error of a [Guard] or a [Locker]. ctx is the
// context of the request; its own end counts only if it has ended. ReasonOf returns
// "" for nil, and [ReasonInternal] for an error that is not one of this package.
func ReasonOf(ctx context.Context, err error) Reason {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, adapter.ErrBodyTimeout): // before ErrKey, in which a KeyFunc may wrap it
		return ReasonBodyTimeout
	case errors.Is(err, adapter.ErrBody):
		return ReasonBodyIncomplete
	case errors.Is(err, ErrKey):
		return ReasonBadKey
	case errors.Is(err, ErrPrincipalLimit):
		return ReasonPrincipalLimit
	case errors.Is(err, adapter.ErrBodyLimit):
		return ReasonBodyTooLarge
	case errors.Is(err, adapter.ErrNoParam), errors.Is(err, ErrConfig), errors.Is(err, ErrUpgrade):
		return ReasonMisconfigured
	case errors.Is(err, ErrQueueFull): // before ErrHeld, which it matches too
		return ReasonQueueFull
	case errors.Is(err, ErrFull): // likewise
		return ReasonFull
	case errors.Is(err, ErrHeld):
		return ReasonHeld
	case errors.Is(err, ErrMaxHold):
		return ReasonMaxHold
	case errors.Is(err, ErrLost):
		return ReasonLost
	case errors.Is(err, ErrNotReplicated):
		return ReasonNotReplicated
	case errors.Is(err, ErrKeyOccupied):
		return ReasonKeyOccupied
	case errors.Is(err, ErrClosed):
		return ReasonClosing
	case errors.Is(err, ErrUnavailable):
		// A store that does not answer is why the wait ended, even where the
		// error carries a context's as well.
		return ReasonUnavailable
	}
	// What is left is the end of the request's own context, whose cause can be
	// any error. A function of the user's that met a time limit of its own is
	// not that.
	switch ctx.Err() {
	case nil:
		return ReasonInternal
	case context.DeadlineExceeded:
		return ReasonDeadline
	default:
		return ReasonCanceled
	}
}

// Text returns what a client may read about the reason. It is a fixed text, the
// same in every protocol.
func (r Reason) Text() string {
	switch r {
	case ReasonBadKey:
		return "The request does not name the resource to lock."
	case ReasonBodyTooLarge:
		return "The request body is too large."
	case ReasonBodyIncomplete:
		return "The request body did not arrive whole, or is malformed. Nothing was done."
	case ReasonBodyTimeout:
		return "The request body did not arrive in time. Nothing was done."
	case ReasonMisconfigured:
		return "The server is not set up for this request. Nothing was done."
	case ReasonHeld, ReasonDeadline:
		return "The resource is locked by another request. Nothing was done."
	case ReasonQueueFull:
		return "Too many requests wait for the resource. Nothing was done."
	case ReasonFull:
		return "As many requests as may are using the resource. Nothing was done."
	case ReasonPrincipalLimit:
		return "Too many requests of the same caller hold or wait for locks. Nothing was done."
	case ReasonCanceled:
		return "The request was canceled while it waited for the resource. Nothing was done."
	case ReasonUnavailable, ReasonNotReplicated:
		return "The resource cannot be locked at the moment. Nothing was done."
	case ReasonKeyOccupied:
		return "The resource cannot be locked. Nothing was done."
	case ReasonClosing:
		return "The server is shutting down. Nothing was done."
	case reason.KeyMissing:
		return "The request needs an idempotency key. Nothing was done."
	case reason.KeyMalformed:
		return "The idempotency key is malformed. Accepted is one key of 1 to 255 characters: " +
			"letters, digits and !#$%&'*+-.^_`|~:/=@ as they are, or any visible ASCII and spaces in double quotes, " +
			"with a backslash before a quote or a backslash. Nothing was done."
	case reason.NoPrincipal:
		return "The request does not say whose idempotency key it has. Nothing was done."
	case reason.KeyReused:
		return "The idempotency key was used for another request. Nothing was done."
	case reason.InFlight:
		return "A request with the same idempotency key is being carried out."
	case reason.OutcomeUnknown:
		return "A request with the same idempotency key was begun, and its outcome is unknown."
	case reason.ResponseUnavailable:
		return "A request with the same idempotency key was carried out, and its response was not kept."
	case reason.RolledBack:
		return "The transaction of the request was rolled back. Nothing was done; the request can be sent again."
	case reason.ResponseTooLarge:
		return "The response is longer than the server can store, and the transaction of the request was rolled back. Nothing was done."
	case reason.KeyExpired:
		return "The idempotency key was used before, and its response is no longer kept. Nothing was done."
	case reason.NoRecord:
		return "It cannot be found out at the moment whether the request was carried out before. Nothing was done."
	case ReasonLost, ReasonMaxHold:
		return "The lock on the resource was lost while the request was carried out. Its outcome is unknown."
	}
	// The rest is the server's fault, of a rule or of an idempotent endpoint.
	return "The server cannot handle the request because of an error of its own. Nothing was done."
}
