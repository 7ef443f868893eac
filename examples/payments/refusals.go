package main

import (
	"errors"
	"net/http"

	"google.golang.org/grpc/codes"

	"github.com/interlock-go/interlock/examples/payments/bank"
)

// refusal is the answer to an error of the bank, in every protocol.
type refusal struct {
	err     error
	status  int
	code    codes.Code
	reason  string // ends the type of a REST problem, and is the reason of gRPC's ErrorInfo
	explain bool   // the client may read the error's text
}

// refusals has the bank's errors, those of admission and the partner's. Any other error is internal.
var refusals = []refusal{
	{errTooLarge, http.StatusRequestEntityTooLarge, codes.ResourceExhausted, "body-too-large", false},
	{errUnauthenticated, http.StatusUnauthorized, codes.Unauthenticated, "unauthenticated", false},
	{bank.ErrInvalid, http.StatusBadRequest, codes.InvalidArgument, "invalid-request", true},
	{bank.ErrUnknownAccount, http.StatusNotFound, codes.NotFound, "unknown-account", false},
	{bank.ErrInsufficientFunds, http.StatusPaymentRequired, codes.FailedPrecondition, "insufficient-funds", false},
	{bank.ErrReferenceReused, http.StatusUnprocessableEntity, codes.FailedPrecondition, "reference-reused", false},
	{bank.ErrStaleToken, http.StatusConflict, codes.Aborted, "stale-token", false},
	{errPartner, http.StatusBadGateway, codes.Unavailable, "partner-unavailable", false},
	{bank.ErrUnavailable, http.StatusServiceUnavailable, codes.Unavailable, "ledger-unavailable", false},
	{bank.ErrOutcomeUnknown, http.StatusInternalServerError, codes.Internal, "outcome-unknown", false},
}

var internal = refusal{errors.New("internal error"), http.StatusInternalServerError, codes.Internal, "internal", false}

// refusalFor returns the answer to an error, and the detail that the client may read,
// if any.
func refusalFor(err error) (r refusal, detail string) {
	for _, r := range refusals {
		switch {
		case !errors.Is(err, r.err):
		case r.explain:
			return r, err.Error()
		default:
			return r, ""
		}
	}
	if e := simulatedError(0); errors.As(err, &e) {
		return refusal{e, int(e), simulatedCodes[int(e)], "simulated", false}, ""
	}
	return internal, ""
}
