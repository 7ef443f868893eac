package grpcx

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
)

const (
	// Domain is the ErrorInfo.domain of every error of a guard.
	Domain = "interlock"

	// retryDelay is when a client may try again; when the holder will be done
	// nobody knows.
	retryDelay = 100 * time.Millisecond

	// MethodKey is the key in ErrorInfo.metadata of the full method that was
	// refused: a client that gets the error of another call does not take it for
	// one of its own.
	MethodKey = "method"

	// pushback is the trailer that gRPC clients with a retry policy obey:
	// milliseconds, or a negative number for not at all (gRFC A6).
	pushback = "grpc-retry-pushback-ms"
)

// statuses is the one table of statuses for gRPC. retry says that the client is
// told when to come back; to a store that is down it comes back on its own terms,
// with a growing back-off.
var statuses = map[core.Reason]struct {
	code  codes.Code
	retry bool
}{
	core.ReasonBadKey:         {codes.InvalidArgument, false},
	core.ReasonBodyTooLarge:   {codes.ResourceExhausted, false},
	core.ReasonBodyIncomplete: {codes.InvalidArgument, false},
	core.ReasonBodyTimeout:    {codes.DeadlineExceeded, false},
	core.ReasonHeld:           {codes.Aborted, true},
	core.ReasonFull:           {codes.ResourceExhausted, true},
	core.ReasonQueueFull:      {codes.Aborted, true},
	core.ReasonPrincipalLimit: {codes.ResourceExhausted, true},
	core.ReasonDeadline:       {codes.DeadlineExceeded, false},
	core.ReasonCanceled:       {codes.Canceled, false},
	core.ReasonUnavailable:    {codes.Unavailable, false},
	core.ReasonNotReplicated:  {codes.Unavailable, true},
	core.ReasonKeyOccupied:    {codes.Internal, false},
	core.ReasonClosing:        {codes.Unavailable, true},
	core.ReasonLost:           {codes.Aborted, false},
	core.ReasonMaxHold:        {codes.Aborted, false},
	core.ReasonMisconfigured:  {codes.Internal, false},
	core.ReasonInternal:       {codes.Internal, false},

	// Of idempotent methods.
	idempotency.ReasonKeyMissing:          {codes.InvalidArgument, false},
	idempotency.ReasonKeyMalformed:        {codes.InvalidArgument, false},
	idempotency.ReasonNoPrincipal:         {codes.InvalidArgument, false},
	idempotency.ReasonKeyReused:           {codes.FailedPrecondition, false},
	idempotency.ReasonInFlight:            {codes.Aborted, true},
	idempotency.ReasonOutcomeUnknown:      {codes.DataLoss, false},
	idempotency.ReasonResponseUnavailable: {codes.DataLoss, false},
	idempotency.ReasonResponseTooLarge:    {codes.Internal, false},
	idempotency.ReasonRolledBack:          {codes.Unavailable, true},
	idempotency.ReasonKeyExpired:          {codes.FailedPrecondition, false},
	idempotency.ReasonNoRecord:            {codes.Unavailable, false},
}

// Status is how refusals are answered by default: the status of the table in the
// package comment with fixed text and an ErrorInfo (reason the same as in HTTP,
// domain "interlock", the full method as metadata), and where the handler did not run and trying again makes
// sense RetryInfo and the trailer grpc-retry-pushback-ms. A handler that ran must
// not run again unasked: the trailer is -1 then. A function for Render can fall
// back on it.
func Status(ctx context.Context, method string, refusal *core.Refusal) error {
	row := statuses[refusal.Reason]
	info := &errdetails.ErrorInfo{Reason: string(refusal.Reason), Domain: Domain}
	if method != "" {
		info.Metadata = map[string]string{MethodKey: method}
	}
	details := []protoadapt.MessageV1{info}
	hint := ""
	switch {
	case refusal.Ran:
		hint = "-1"
	case row.retry:
		hint = strconv.FormatInt(retryDelay.Milliseconds(), 10)
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(retryDelay)})
	}
	if hint != "" {
		// It fails only where there is no call to have trailers.
		_ = grpc.SetTrailer(ctx, metadata.Pairs(pushback, hint))
	}
	st, err := status.New(row.code, refusal.Reason.Text()).WithDetails(details...)
	if err != nil {
		return status.Error(codes.Internal, refusal.Reason.Text())
	}
	return &refused{st.Err()}
}
