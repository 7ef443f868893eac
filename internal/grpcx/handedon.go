package grpcx

import (
	"context"
	"errors"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/reason"
)

// refused is the error that Status makes of a refusal in this process. Its type
// tells it from a refusal that another server sent.
type refused struct{ error }

func (e *refused) Unwrap() error              { return e.error }
func (e *refused) GRPCStatus() *status.Status { return status.Convert(e.error) }

// handedOn is an error of a handler without its retry hint.
type handedOn struct {
	error
	st *status.Status
}

func (e *handedOn) Unwrap() error              { return e.error }
func (e *handedOn) GRPCStatus() *status.Status { return e.st }

// HandedOn takes the retry hint from an error that a handler got of another
// server's guard and hands on to its own client: the hint says that the other
// handler did not run, and this one did. The trailer -1 tells a retry policy the
// same. An error that leaves the outcome of a further call unknown has the code UNKNOWN: the code
// of a proxy (PERMISSION_DENIED) would be stored as the answer. Other errors are returned as they are, and so are refusals of this
// process, which come from an interceptor further inside.
func HandedOn(ctx context.Context, method string, err error) error {
	return stuck(ctx, method, handedBy(ctx, err))
}

func handedBy(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	var request *idempotency.RequestError
	if errors.As(err, &request) && errors.Is(err, idempotency.ErrOutcomeUnknown) {
		return &handedOn{err, status.New(codes.Unknown, "The outcome of a call to another service is not known.")}
	}
	var own *refused
	st, ok := status.FromError(err)
	if !ok || errors.As(err, &own) {
		return err
	}
	proto := st.Proto() // a copy
	ours, hint := false, false
	var kept []*anypb.Any
	for _, detail := range proto.GetDetails() {
		if detail.MessageIs((*errdetails.RetryInfo)(nil)) {
			hint = true
			continue
		}
		info := &errdetails.ErrorInfo{}
		if detail.MessageIs(info) && detail.UnmarshalTo(info) == nil {
			ours = ours || info.GetDomain() == Domain
		}
		kept = append(kept, detail)
	}
	if !ours || !hint {
		return err
	}
	proto.Details = kept
	// A trailer that the handler has handed on too makes two, which clients take
	// for none (gRFC A6).
	_ = grpc.SetTrailer(ctx, metadata.Pairs(pushback, "-1"))
	return &handedOn{err, status.FromProto(proto)}
}

// stuck marks the failure of a handler that its own callers keep from a lock ([adapter.IsStuck]): with the details
// and the trailer of a refusal after the handler has run.
func stuck(ctx context.Context, method string, err error) error {
	if err == nil || !adapter.IsStuck(ctx) {
		return err
	}
	st, _ := status.FromError(err)
	switch st.Code() {
	case codes.Canceled, codes.Unknown, codes.DeadlineExceeded, codes.Internal, codes.Unavailable:
	default: // clients take it for an answer
		return err
	}
	marked, failed := st.WithDetails(&errdetails.ErrorInfo{
		Reason: string(reason.HeldByCaller), Domain: Domain, Metadata: map[string]string{MethodKey: method, RanKey: "true"},
	})
	if failed != nil {
		return err
	}
	_ = grpc.SetTrailer(ctx, metadata.Pairs(pushback, "-1"))
	return &handedOn{err, marked}
}
