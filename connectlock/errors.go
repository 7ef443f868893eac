package connectlock

import (
	"context"
	"errors"
	"os"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectproto"
)

// answered is an error of connect's with the status that the client gets.
type answered struct {
	error
	st *status.Status
}

func (a *answered) Unwrap() error              { return a.error }
func (a *answered) GRPCStatus() *status.Status { return a.st }

// inward gives a handler's error to interceptors of gRPC's. connect's transports derive
// the status from the error: only a connect.Error of this process has a text for the
// client.
func inward(err error) error {
	if err == nil {
		return nil
	}
	code := codes.Unknown
	var own *connect.Error
	switch {
	case errors.As(err, &own) && own.IsRemote():
		code = codes.Internal
	case own != nil:
		return &answered{err, statusOf(own)}
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		code = codes.DeadlineExceeded
	}
	return &answered{err, status.New(code, "")}
}

// told gives the error that a client got to interceptors of gRPC's, with the details that
// the server sent.
func told(err error) error {
	var e *connect.Error
	if !errors.As(err, &e) {
		return err
	}
	return &answered{err, statusOf(e)}
}

// statusOf is the status of an error of connect's.
func statusOf(e *connect.Error) *status.Status {
	st := &spb.Status{Code: int32(e.Code()), Message: e.Message()} //nolint:gosec // codes are small
	for _, detail := range e.Details() {
		st.Details = append(st.Details, connectproto.ErrorDetailToAny(detail))
	}
	return status.FromProto(st)
}

// outward gives an error of gRPC's interceptors to connect: an error that they got from
// connect as it was, and a status as a connect.Error with the same details.
func outward(err error) error {
	if a, own := err.(*answered); own { //nolint:errorlint // an error that wraps it has another status
		return a.error
	}
	var made *connect.Error // by the function of grpclock.Render, or by the transport
	_, isStatus := err.(interface{ GRPCStatus() *status.Status })
	st, ok := status.FromError(err) // looks at causes too
	if err == nil || !ok || !isStatus && errors.As(err, &made) {
		return err
	}
	e := connect.NewError(connect.Code(st.Code()), st.Message()).WithCause(err)
	for _, packed := range st.Proto().GetDetails() {
		if detail, err := connectproto.NewErrorDetail(packed); err == nil {
			e = e.WithDetail(detail)
		}
	}
	return e
}
