package grpclock

import (
	"context"
	"fmt"
	"sync"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
)

// recorder keeps the metadata that a handler sends until the answer is stored. The
// handler's context holds it, so that [grpc.SetHeader], [grpc.SendHeader] and
// [grpc.SetTrailer] use it. [grpc.SetSendCompressor] does not work with it, and
// returns an error.
type recorder struct {
	method string

	mu              sync.Mutex // handlers may send from several goroutines
	header, trailer metadata.MD
}

// Method implements grpc.ServerTransportStream.
func (r *recorder) Method() string { return r.method }

// SetHeader implements grpc.ServerTransportStream.
func (r *recorder) SetHeader(md metadata.MD) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.header = metadata.Join(r.header, md)
	return nil
}

// SendHeader only notes the metadata: nothing may be sent before the answer is
// stored.
func (r *recorder) SendHeader(md metadata.MD) error { return r.SetHeader(md) }

// SetTrailer implements grpc.ServerTransportStream.
func (r *recorder) SetTrailer(md metadata.MD) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trailer = metadata.Join(r.trailer, md)
	return nil
}

// answer returns the response to store. A reply that cannot be stored is sent all
// the same.
func (r *recorder) answer(attempt endpoint.Attempt, reply any, err error) endpoint.Response {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := endpoint.Response{Header: r.header, Trailer: r.trailer}
	msg, ok := reply.(proto.Message)
	if err != nil {
		st := statusOf(err).Proto() // a copy
		a.Status = int(st.GetCode())
		// The server sends a message of any bytes and replaces bytes that are no
		// UTF-8. The protobuf of a status refuses them, so they are replaced here.
		st.Message = string([]rune(st.GetMessage()))
		msg, ok = st, true
	}
	if ok {
		a.Body, err = proto.MarshalOptions{Deterministic: true}.Marshal(msg)
	}
	if !ok || err != nil {
		attempt.TooLarge(a.Status)
	}
	return a
}

// statusOf makes a status from a handler's error, as the server does.
func statusOf(err error) *status.Status {
	st, ok := status.FromError(err)
	if !ok {
		st = status.FromContextError(err)
	}
	return st
}

// send sends the metadata. It ignores errors: the client may have left, or the
// context may belong to no call.
func (r *recorder) send(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	header := metadata.Join(r.header) // the marks of another service are not this answer's
	header.Delete(idempotency.ReplayedHeader)
	header.Delete(idempotency.InterimHeader)
	_ = grpc.SetHeader(ctx, header)
	_ = grpc.SetTrailer(ctx, marked(r.trailer))
}

// marked returns the trailer of a handler's answer with the mark of an idempotent method. A header
// would keep a retry policy of a client from sending a failed call again.
func marked(trailer metadata.MD) metadata.MD {
	trailer = metadata.Join(trailer)
	trailer.Set(idempotency.ResultHeader, idempotency.ResultAnswered)
	return trailer
}

// replay sends a stored response.
func (m *idempotent) replay(ctx context.Context, r *endpoint.Response) (any, error) {
	header := metadata.Join(r.Header, metadata.Pairs(idempotency.ReplayedHeader, "true"))
	_ = grpc.SetHeader(ctx, header)
	_ = grpc.SetTrailer(ctx, marked(r.Trailer))
	if code := codes.Code(r.Status); code != codes.OK { //nolint:gosec // written by answer
		st := &spb.Status{}
		if err := proto.Unmarshal(r.Body, st); err != nil {
			return nil, status.Error(code, fmt.Sprintf("%v", code))
		}
		st.Code = int32(code) //nolint:gosec // a panic is stored without its status
		return nil, status.ErrorProto(st)
	}
	return m.reply(r.Body)
}

// reply decodes a stored message. If the type is not known, it returns a message
// without fields that keeps the bytes as unknown fields, and is encoded the same.
func (m *idempotent) reply(b []byte) (any, error) {
	if m.output != nil {
		msg := m.output.New().Interface()
		if err := proto.Unmarshal(b, msg); err == nil {
			return msg, nil
		}
	}
	msg := &emptypb.Empty{}
	msg.ProtoReflect().SetUnknown(b)
	return msg, nil
}
