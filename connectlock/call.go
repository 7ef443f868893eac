package connectlock

import (
	"context"
	"maps"
	"slices"
	"strings"

	"connectrpc.com/connect/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
)

// call is a call of connect as gRPC's interceptors see it. It is the
// grpc.ServerTransportStream of ctx.
type call struct {
	ctx    context.Context // with the request's metadata
	spec   connect.Spec
	stream connect.ServerStream
	info   *connect.CallInfo
}

func newCall(ctx context.Context, spec connect.Spec, stream connect.ServerStream) *call {
	info, ok := connect.CallInfoForServerContext(ctx)
	if !ok { // called without a server
		info = &connect.CallInfo{}
	}
	c := &call{spec: spec, stream: stream, info: info}
	md := toMD(info.RequestHeader())
	if host := md.Get("Host"); len(host) > 0 { // HTTP's name of the authority
		md.Set(":authority", host...)
	}
	c.ctx = grpc.NewContextWithServerTransportStream(metadata.NewIncomingContext(ctx, md), c)
	return c
}

// receive receives the message of a unary call. A message without a schema stays for the
// handler: nil.
func (c *call) receive() (proto.Message, error) {
	method, ok := c.spec.Schema.(protoreflect.MethodDescriptor)
	if !ok {
		return nil, nil //nolint:nilnil // neither a message nor an error
	}
	t, err := protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName())
	if err != nil || t.Descriptor() != method.Input() {
		t = dynamicpb.NewMessageType(method.Input())
	}
	req := t.New().Interface()
	return req, c.stream.Receive(req)
}

// noted wraps a handler of an idempotent endpoint. The handler's additions to the response's
// metadata go to the interceptor, which sends it with the answer.
func (c *call) noted(next connect.ServerFunc) connect.ServerFunc {
	return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
		header, trailer := maps.Collect(c.info.ResponseHeader().All()), maps.Collect(c.info.ResponseTrailer().All())
		err := next(ctx, spec, stream)
		// They fail only where there is no call to have metadata.
		_ = grpc.SetHeader(ctx, takeBack(c.info.ResponseHeader(), header))
		_ = grpc.SetTrailer(ctx, takeBack(c.info.ResponseTrailer(), trailer))
		return err
	}
}

// takeBack restores the former header, and returns the changes.
func takeBack(h *connect.Header, before map[string][]string) metadata.MD {
	changed := &connect.Header{}
	for key, values := range maps.Collect(h.All()) {
		if !slices.Equal(values, before[key]) {
			changed.SetValues(key, values)
			h.Delete(key)
		}
	}
	for key, values := range before {
		h.SetValues(key, values)
	}
	return toMD(changed)
}

// Method implements grpc.ServerTransportStream.
func (c *call) Method() string { return c.spec.Procedure }

// SetHeader implements grpc.ServerTransportStream.
func (c *call) SetHeader(md metadata.MD) error { setMD(c.info.ResponseHeader(), md); return nil }

// SendHeader implements grpc.ServerTransportStream. The headers leave with the answer.
func (c *call) SendHeader(md metadata.MD) error { return c.SetHeader(md) }

// SetTrailer implements grpc.ServerTransportStream.
func (c *call) SetTrailer(md metadata.MD) error { setMD(c.info.ResponseTrailer(), md); return nil }

// binary is the suffix of names of binary metadata: grpc-go has decoded these values, and
// connect has not.
const binary = "-bin"

// toMD makes metadata of a header.
func toMD(h *connect.Header) metadata.MD {
	md := make(metadata.MD, h.Len())
	for key, values := range h.All() {
		key = strings.ToLower(key)
		if strings.HasSuffix(key, binary) {
			values = each(values, func(v string) string {
				b, err := connect.DecodeBinaryHeader(v)
				if err != nil {
					return v
				}
				return string(b)
			})
		}
		md[key] = values
	}
	return md
}

// setMD sets metadata in a header. Values that were set before are replaced: a retry hint
// that is given twice does not count (gRFC A6).
func setMD(h *connect.Header, md metadata.MD) {
	for key, values := range md {
		if strings.HasSuffix(key, binary) {
			values = each(values, func(v string) string { return connect.EncodeBinaryHeader([]byte(v)) })
		}
		h.SetValues(key, values)
	}
}

func each(values []string, f func(string) string) []string {
	mapped := make([]string, len(values))
	for i, v := range values {
		mapped[i] = f(v)
	}
	return mapped
}
