package idempotency

import (
	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/internal/reason"
)

// The reasons for a refusal of an idempotent endpoint, with the HTTP status and the
// gRPC code that the adapters give them. An endpoint also refuses for reasons of
// package core ([core.ReasonBodyTooLarge], [core.ReasonClosing] and others).
const (
	// ReasonKeyMissing (400, INVALID_ARGUMENT): the request has no idempotency key,
	// and the endpoint wants one.
	ReasonKeyMissing core.Reason = reason.KeyMissing
	// ReasonKeyMalformed (400, INVALID_ARGUMENT): the request has an empty or
	// malformed idempotency key, a key of more than 255 characters, or two keys.
	ReasonKeyMalformed core.Reason = reason.KeyMalformed
	// ReasonNoPrincipal (400, INVALID_ARGUMENT): the Scope function of the endpoint
	// found no principal that the key could belong to.
	ReasonNoPrincipal core.Reason = reason.NoPrincipal
	// ReasonKeyReused (422, FAILED_PRECONDITION): the key was used for another
	// request.
	ReasonKeyReused core.Reason = reason.KeyReused
	// ReasonInFlight (409, ABORTED): a request with the key is being carried out at
	// this moment.
	ReasonInFlight core.Reason = reason.InFlight
	// ReasonOutcomeUnknown (409, DATA_LOSS): a request with the key was begun, and
	// it is not known how it ended. It is not carried out again.
	ReasonOutcomeUnknown core.Reason = reason.OutcomeUnknown
	// ReasonResponseUnavailable (409, DATA_LOSS): a request with the key was
	// carried out, and its response could not be stored.
	ReasonResponseUnavailable core.Reason = reason.ResponseUnavailable
	// ReasonResponseTooLarge (500, INTERNAL): the response is longer than
	// [MaxResponse], and the handler has a transaction ([Enlist]), which was rolled
	// back. Every retry ends the same way: raise the limit.
	ReasonResponseTooLarge core.Reason = reason.ResponseTooLarge
	// ReasonRolledBack (503, UNAVAILABLE): the database did not commit the
	// transaction of the handler (a serialization failure, a lock that was lost). It
	// has had no effect, and the client may try again with the same key.
	ReasonRolledBack core.Reason = reason.RolledBack
	// ReasonKeyExpired (410, FAILED_PRECONDITION): the key was used so long ago
	// that the response is gone. The endpoint still remembers that it was used.
	ReasonKeyExpired core.Reason = reason.KeyExpired
	// ReasonNoRecord (503, UNAVAILABLE): the server cannot find out whether the
	// request was carried out before.
	ReasonNoRecord core.Reason = reason.NoRecord
)

// The outcomes of a request to an idempotent endpoint ([observe.Decided.Outcome]).
const (
	// DecidedStored: the handler ran and its response was stored.
	DecidedStored = "stored"
	// DecidedPending: the handler ran and its response was sent, but the store did
	// not confirm that it has the response. The engine goes on storing it in the
	// background.
	DecidedPending = "pending"
	// DecidedReleased: the handler ran and failed; the next request runs it again.
	DecidedReleased = "released"
	// DecidedReplayed: the stored response was sent.
	DecidedReplayed = "replayed"
	// DecidedRefused: the request was refused.
	DecidedRefused = "refused"
	// DecidedUnknown: the handler ran and failed after its claim or its lock was
	// lost. Nothing was stored, and the claim ends with its lease.
	DecidedUnknown = "unknown"
)
