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
	"github.com/interlock-go/interlock/core/reason"
)

const (
	// Domain is the ErrorInfo.domain of every error of a guard.
	Domain = "interlock"

	// retryDelay is when a client may try again; when the holder will be done
	// is not known.
	retryDelay = 100 * time.Millisecond

	// MethodKey is the key in ErrorInfo.metadata of the full method that was
	// refused: a client that gets the error of another call does not take it for
	// its own.
	MethodKey = "method"

	// RanKey is the key in ErrorInfo.metadata that says that the handler ran.
	RanKey = "ran"

	// pushback is the trailer that gRPC clients with a retry policy obey:
	// milliseconds, or a negative number for not at all (gRFC A6).
	pushback = "grpc-retry-pushback-ms"
)

// statuses is the one table of statuses for gRPC. retry says that the answer tells
// the client when to come back; for a store that is down the client decides
// itself, with a growing back-off.
var statuses = map[reason.Reason]struct {
	code  codes.Code
	retry bool
}{
	reason.BadKey:         {codes.InvalidArgument, false},
	reason.BodyTooLarge:   {codes.ResourceExhausted, false},
	reason.BodyIncomplete: {codes.InvalidArgument, false},
	reason.BodyTimeout:    {codes.DeadlineExceeded, false},
	reason.Held:           {codes.Aborted, true},
	reason.Full:           {codes.ResourceExhausted, true},
	reason.QueueFull:      {codes.Aborted, true},
	reason.Superseded:     {codes.Aborted, false},
	reason.HeldByCaller:   {codes.Aborted, false},
	reason.StaleToken:     {codes.FailedPrecondition, false},
	reason.TokenMissing:   {codes.FailedPrecondition, false},
	reason.TokenMalformed: {codes.InvalidArgument, false},
	reason.PrincipalLimit: {codes.ResourceExhausted, true},
	reason.Deadline:       {codes.DeadlineExceeded, false},
	reason.Canceled:       {codes.Canceled, false},
	reason.Unavailable:    {codes.Unavailable, false},
	reason.NotReplicated:  {codes.Unavailable, true},
	reason.KeyOccupied:    {codes.Internal, false},
	reason.Closing:        {codes.Unavailable, true},
	reason.Lost:           {codes.Aborted, false},
	reason.MaxHold:        {codes.Aborted, false},
	reason.Misconfigured:  {codes.Internal, false},
	reason.Internal:       {codes.Internal, false},

	// Of idempotent methods.
	reason.KeyMissing:          {codes.InvalidArgument, false},
	reason.KeyMalformed:        {codes.InvalidArgument, false},
	reason.NoPrincipal:         {codes.InvalidArgument, false},
	reason.ContentType:         {codes.InvalidArgument, false},
	reason.KeyReused:           {codes.FailedPrecondition, false},
	reason.InFlight:            {codes.Aborted, true},
	reason.OutcomeUnknown:      {codes.DataLoss, false},
	reason.ResponseUnavailable: {codes.DataLoss, false},
	reason.ResponseTooLarge:    {codes.Internal, false},
	reason.RolledBack:          {codes.Unavailable, true},
	reason.NotAcceptable:       {codes.FailedPrecondition, false},
	reason.KeyExpired:          {codes.FailedPrecondition, false},
	reason.NoRecord:            {codes.Unavailable, false},
}

// Status is how refusals are answered by default: the status of the table in the
// package comment with fixed text and an ErrorInfo (reason the same as in HTTP,
// domain "interlock", the full method as metadata), and where the handler did not run and trying again makes
// sense RetryInfo and the trailer grpc-retry-pushback-ms. A handler that ran must
// not run again unasked, and a call that a newer call has superseded would come as the newest: the
// trailer is -1 then. A function for Render can fall
// back on it.
func Status(ctx context.Context, method string, refusal *core.Refusal) error {
	row := statuses[refusal.Reason]
	info := &errdetails.ErrorInfo{Reason: string(refusal.Reason), Domain: Domain}
	if method != "" {
		info.Metadata = map[string]string{MethodKey: method}
		if refusal.Ran {
			info.Metadata[RanKey] = "true"
		}
	}
	details := []protoadapt.MessageV1{info}
	hint := ""
	switch {
	case refusal.Ran, refusal.Reason == reason.Superseded, refusal.Reason == reason.HeldByCaller, refusal.Reason == reason.StaleToken:
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
