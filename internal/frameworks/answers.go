package frameworks

import (
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/internal/adaptertest"
)

// Answer is how a client is told of a refusal, by protocol: the status, and when it is
// invited to try again.
type Answer struct{ HTTP, HTTPRetry, GRPC, GRPCRetry, Pushback string }

// Answers is the table of the design: what a client is told.
var Answers = map[core.Reason]Answer{
	core.ReasonBadKey:         {"400", "", "InvalidArgument", "", ""},
	core.ReasonBodyTooLarge:   {"413", "", "ResourceExhausted", "", ""},
	core.ReasonBodyIncomplete: {"400", "", "InvalidArgument", "", ""},
	core.ReasonBodyTimeout:    {"408", "", "DeadlineExceeded", "", ""},
	core.ReasonHeld:           {"423", "1s", "Aborted", "100ms", "100"},
	core.ReasonFull:           {"429", "1s", "ResourceExhausted", "100ms", "100"},
	core.ReasonQueueFull:      {"423", "1s", "Aborted", "100ms", "100"},
	core.ReasonPrincipalLimit: {"429", "1s", "ResourceExhausted", "100ms", "100"},
	core.ReasonDeadline:       {"423", "", "DeadlineExceeded", "", ""},
	core.ReasonCanceled:       {"", "", "Canceled", "", ""},
	core.ReasonUnavailable:    {"503", "1s", "Unavailable", "", ""},
	core.ReasonNotReplicated:  {"503", "1s", "Unavailable", "100ms", "100"},
	core.ReasonKeyOccupied:    {"500", "", "Internal", "", ""},
	core.ReasonClosing:        {"503", "1s", "Unavailable", "100ms", "100"},
	core.ReasonLost:           {"500", "", "Aborted", "", "-1"},
	core.ReasonMaxHold:        {"500", "", "Aborted", "", "-1"},
	core.ReasonMisconfigured:  {"500", "", "Internal", "", ""},
	core.ReasonInternal:       {"500", "", "Internal", "", ""},

	idempotency.ReasonKeyMissing:          {"400", "", "InvalidArgument", "", ""},
	idempotency.ReasonKeyMalformed:        {"400", "", "InvalidArgument", "", ""},
	idempotency.ReasonNoPrincipal:         {"400", "", "InvalidArgument", "", ""},
	idempotency.ReasonKeyReused:           {"422", "", "FailedPrecondition", "", ""},
	idempotency.ReasonInFlight:            {"409", "1s", "Aborted", "100ms", "100"},
	idempotency.ReasonOutcomeUnknown:      {"409", "", "DataLoss", "", ""},
	idempotency.ReasonResponseUnavailable: {"409", "", "DataLoss", "", ""},
	idempotency.ReasonResponseTooLarge:    {"500", "", "Internal", "", ""},
	idempotency.ReasonRolledBack:          {"503", "1s", "Unavailable", "100ms", "100"},
	idempotency.ReasonKeyExpired:          {"410", "", "FailedPrecondition", "", ""},
	idempotency.ReasonNoRecord:            {"503", "1s", "Unavailable", "", ""},
}

// WantRefused holds an outcome against the table. ran says that a handler ran.
func (f Framework) WantRefused(tb testing.TB, o adaptertest.Outcome, reason core.Reason, ran bool) {
	tb.Helper()
	row, known := Answers[reason]
	if !known {
		tb.Fatalf("%s is not in the table", reason)
	}
	want := adaptertest.Outcome{Ran: ran, Reason: string(reason), Domain: "interlock", Detail: reason.Text()}
	if want.Code, want.Retry = row.HTTP, row.HTTPRetry; !f.HTTP {
		want.Code, want.Retry, want.Pushback = row.GRPC, row.GRPCRetry, row.Pushback
	}
	if o != want {
		tb.Errorf("\n%+v; want\n%+v", o, want)
	}
}
