package grpcx

import (
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/asked"
)

func TestWhatAClientGetsOfACallIsRead(t *testing.T) {
	const method = "/bank.v1.Bank/Pay"
	fails := func(code codes.Code) error { return status.Error(code, "no") }
	refused := func(why reason.Reason, ran bool) error {
		return Status(t.Context(), method, &core.Refusal{Reason: why, Ran: ran})
	}
	fresh, replayed := metadata.Pairs("interlock-result", "answered"), metadata.Pairs("interlock-result", "answered", "idempotent-replayed", "true")
	for _, c := range []struct {
		name   string
		err    error
		header metadata.MD
		sent   bool
		want   asked.Kind
		why    reason.Reason
		ran    bool
	}{
		{"success", nil, nil, true, asked.Success, "", false},
		{"a lost answer", fails(codes.Unavailable), nil, true, asked.Unanswered, "", false},
		{"the deadline", fails(codes.DeadlineExceeded), nil, true, asked.Unanswered, "", false},
		{"no connection", fails(codes.Unavailable), nil, false, asked.Unsent, "", false},
		{"no status", errors.New("no"), nil, true, asked.Unanswered, "", false},
		{"a failure of the handler", fails(codes.Internal), fresh, true, asked.Failed, "", false},
		{"a replayed failure", fails(codes.Internal), replayed, true, asked.FailedForGood, "", false},
		{"an answer of the handler", fails(codes.NotFound), fresh, true, asked.Stored, "", false},
		{"a replayed answer", fails(codes.NotFound), replayed, true, asked.Stored, "", false},
		{"not now", fails(codes.Aborted), fresh, true, asked.NotNow, "", false},
		{"an interceptor in front", fails(codes.PermissionDenied), nil, true, asked.Foreign, "", false},
		{"a proxy without such a method", fails(codes.Unimplemented), nil, true, asked.Foreign, "", false},
		{"refused", refused(reason.Held, false), nil, true, asked.Refused, reason.Held, false},
		{"refused, and the handler ran", refused(reason.Lost, true), nil, true, asked.Refused, reason.Lost, true},
		{"refused by a further server", Status(t.Context(), "/other.v1.Other/Do", &core.Refusal{Reason: reason.Held}), nil, true, asked.Foreign, "", false},
	} {
		if a := Meaning(method, c.err, c.header, c.sent); a.Kind != c.want || a.Reason != c.why || a.Ran != c.ran {
			t.Errorf("%s: %+v; want %v %q, ran %v", c.name, a, c.want, c.why, c.ran)
		}
	}
}
