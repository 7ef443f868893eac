package adaptertest

import (
	"testing"

	"github.com/interlock-go/interlock/core/reason"
)

// Answer is how a refusal reaches a client, by protocol: the status, and when it is
// invited to try again.
type Answer struct{ HTTP, HTTPRetry, GRPC, GRPCRetry, Pushback string }

// Answers is the table of the answers to clients.
var Answers = map[reason.Reason]Answer{
	reason.BadKey:         {"400", "", "InvalidArgument", "", ""},
	reason.BodyTooLarge:   {"413", "", "ResourceExhausted", "", ""},
	reason.BodyIncomplete: {"400", "", "InvalidArgument", "", ""},
	reason.BodyTimeout:    {"408", "", "DeadlineExceeded", "", ""},
	reason.Held:           {"423", "1s", "Aborted", "1s", ""},
	reason.Full:           {"429", "1s", "ResourceExhausted", "1s", ""},
	reason.QueueFull:      {"423", "1s", "Aborted", "1s", ""},
	reason.Superseded:     {"409", "", "Aborted", "", "-1"},
	reason.HeldByCaller:   {"409", "", "Aborted", "", "-1"},
	reason.StaleToken:     {"412", "", "FailedPrecondition", "", "-1"},
	reason.TokenMissing:   {"428", "", "FailedPrecondition", "", ""},
	reason.TokenMalformed: {"400", "", "InvalidArgument", "", ""},
	reason.PrincipalLimit: {"429", "1s", "ResourceExhausted", "1s", ""},
	reason.Deadline:       {"423", "", "DeadlineExceeded", "", ""},
	reason.Canceled:       {"", "", "Canceled", "", ""},
	reason.Unavailable:    {"503", "1s", "Unavailable", "1s", ""},
	reason.NotReplicated:  {"503", "1s", "Unavailable", "1s", ""},
	reason.KeyOccupied:    {"500", "", "Internal", "", ""},
	reason.Closing:        {"503", "1s", "Unavailable", "1s", ""},
	reason.Lost:           {"500", "", "Aborted", "", "-1"},
	reason.MaxHold:        {"500", "", "Aborted", "", "-1"},
	reason.Misconfigured:  {"500", "", "Internal", "", ""},
	reason.Internal:       {"500", "", "Internal", "", ""},

	reason.KeyMissing:          {"400", "", "InvalidArgument", "", ""},
	reason.KeyMalformed:        {"400", "", "InvalidArgument", "", ""},
	reason.NoPrincipal:         {"400", "", "InvalidArgument", "", ""},
	reason.ContentType:         {"415", "", "InvalidArgument", "", ""},
	reason.KeyReused:           {"422", "", "FailedPrecondition", "", ""},
	reason.InFlight:            {"409", "1s", "Aborted", "1s", ""},
	reason.OutcomeUnknown:      {"409", "", "DataLoss", "", ""},
	reason.ResponseUnavailable: {"409", "", "DataLoss", "", ""},
	reason.ResponseTooLarge:    {"500", "", "Internal", "", ""},
	reason.RolledBack:          {"503", "1s", "Unavailable", "1s", ""},
	reason.NotAcceptable:       {"406", "", "FailedPrecondition", "", ""},
	reason.KeyExpired:          {"410", "", "FailedPrecondition", "", ""},
	reason.NoRecord:            {"503", "1s", "Unavailable", "1s", ""},
}

// WantRefused holds an outcome against the table. ran says that a handler ran.
func (f Framework) WantRefused(tb testing.TB, o Outcome, reason reason.Reason, ran bool) {
	tb.Helper()
	row, known := Answers[reason]
	if !known {
		tb.Fatalf("%s is not in the table", reason)
	}
	want := Outcome{Ran: ran, Reason: string(reason), Domain: "interlock", Detail: reason.Text()}
	if want.Code, want.Retry = row.HTTP, row.HTTPRetry; !f.HTTP && !f.Statuses {
		want.Code, want.Retry, want.Pushback = row.GRPC, row.GRPCRetry, row.Pushback
	}
	if o != want {
		tb.Errorf("\n%+v; want\n%+v", o, want)
	}
}
