package grpcx

import (
	"context"

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

	// MethodKey is the key in ErrorInfo.metadata of the full method that was
	// refused: a client that gets the error of another call does not take it for
	// its own.
	MethodKey = "method"

	// RanKey is the key in ErrorInfo.metadata that says that the handler ran.
	RanKey = "ran"

	// pushback is the trailer that gRPC clients with a retry policy obey:
	// milliseconds, or a negative number for not at all (gRFC A6). Milliseconds would
	// replace the backoff of the policy, so no refusal has any.
	pushback = "grpc-retry-pushback-ms"
)

// Status is how refusals are answered by default: the status of the table in the
// package comment with fixed text and an ErrorInfo (reason the same as in HTTP,
// domain "interlock", the full method as metadata), and where the handler did not run and trying again makes
// sense RetryInfo. A handler that ran must not run again unasked, and a call that a newer call has
// superseded would come as the newest: the trailer grpc-retry-pushback-ms is -1 then. A function for Render can fall
// back on it.
func Status(ctx context.Context, method string, refusal *core.Refusal) error {
	info := &errdetails.ErrorInfo{Reason: string(refusal.Reason), Domain: Domain}
	if method != "" {
		info.Metadata = map[string]string{MethodKey: method}
		if refusal.Ran {
			info.Metadata[RanKey] = "true"
		}
	}
	details := []protoadapt.MessageV1{info}
	switch {
	case refusal.Ran, refusal.Reason == reason.Superseded, refusal.Reason == reason.HeldByCaller, refusal.Reason == reason.StaleToken:
		// It fails only where there is no call to have trailers.
		_ = grpc.SetTrailer(ctx, metadata.Pairs(pushback, "-1"))
	case refusal.Retryable():
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(refusal.RetryAfter())})
	}
	st, err := status.New(codes.Code(refusal.Reason.GRPC()), refusal.Reason.Text()).WithDetails(details...)
	if err != nil {
		return status.Error(codes.Internal, refusal.Reason.Text())
	}
	return &refused{st.Err()}
}
