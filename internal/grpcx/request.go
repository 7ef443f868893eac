package grpcx

import (
	"context"
	"fmt"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
)

// Method has the facts of a method that are known before a call.
type Method struct {
	Guard *core.Guard
	Name  string
	// input is the generated type of the request, nil if none is linked in;
	// fields are the rule's placeholders in it.
	input  protoreflect.MessageType
	fields map[string]Path
}

// NewMethod looks up everything about a method that does not depend on the call.
func NewMethod(name string, guard *core.Guard) *Method {
	m := &Method{Guard: guard, Name: name}
	desc := FindMethod(protoregistry.GlobalFiles, name)
	if desc == nil {
		return m
	}
	input, err := protoregistry.GlobalTypes.FindMessageByName(desc.Input().FullName())
	if err != nil {
		return m
	}
	m.input, m.fields = input, make(map[string]Path)
	for _, p := range guard.Placeholders() {
		if p.Source != adapter.SourceParam {
			continue
		}
		// The calls refuse a field that cannot be found, and Validate does so earlier.
		if fields, err := Resolve(input.Descriptor(), p.Name); err == nil {
			m.fields[p.Name] = fields
		}
	}
	return m
}

// Request is a call for the guard. A stream's message is received when the guard
// or a function asks for it: a rule on metadata alone does not have to wait for a message.
type Request struct {
	*Method
	Ctx    context.Context
	Msg    any     // of a unary call
	Stream *Stream // of any other
}

// errNoProto is the server's mistake: its codec is another, or the method's
// generated code is not linked in.
var errNoProto = fmt.Errorf("%w: the request is no generated protobuf message", adapter.ErrNoParam)

// Message returns the request message, of a stream the first one.
func (q *Request) Message() (proto.Message, error) {
	if q.Stream != nil {
		return q.Stream.receive(q.input)
	}
	if m, ok := q.Msg.(proto.Message); ok {
		return m, nil
	}
	return nil, errNoProto
}

// Route returns the full method.
func (q *Request) Route() (string, bool) { return q.Name, true }

// Param returns a field of the message as text, "" for a field that is not set.
func (q *Request) Param(name string) (string, error) {
	msg, err := q.Message()
	if err != nil {
		return "", err
	}
	m := msg.ProtoReflect()
	fields, known := q.fields[name]
	// A dynamic message (dynamicpb) has its own descriptors, and a KeyFunc may ask for any
	// field.
	if !known || m.Descriptor() != q.input.Descriptor() {
		if fields, err = Resolve(m.Descriptor(), name); err != nil {
			return "", fmt.Errorf("%w: %w", adapter.ErrNoParam, err)
		}
	}
	return fields.Text(m), nil
}

// Header returns metadata. Host is the pseudo-header :authority of HTTP/2, so that a rule
// means the same for REST.
func (q *Request) Header(name string) []string {
	if name == "Host" {
		name = ":authority"
	}
	return metadata.ValueFromIncomingContext(q.Ctx, name)
}

// Query returns nothing; FromProto and Validate refuse rules that ask for it.
func (q *Request) Query(string) []string { return nil }

// Body returns the message in wire format, canonical: see Canonical.
func (q *Request) Body(limit int64) ([]byte, error) {
	m, err := q.Message()
	switch {
	case err != nil:
		return nil, err
	case int64(proto.Size(m)) > limit:
		return nil, adapter.ErrBodyLimit
	}
	b, err := Canonical(m)
	if err != nil { // a required field of proto2 is missing
		return nil, fmt.Errorf("%w: %w", adapter.ErrBody, err)
	}
	return b, nil
}

// Value returns a value of the call's context.
func (q *Request) Value(key any) any { return q.Ctx.Value(key) }

// Native returns the message, of a stream the first one, nil if there is none.
func (q *Request) Native() any {
	if q.Stream == nil {
		return q.Msg
	}
	m, err := q.Message()
	if err != nil {
		return nil
	}
	return m
}
