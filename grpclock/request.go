package grpclock

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/interlock-go/interlock/core"
)

// method is what is known of a method before it is called.
type method struct {
	guard *core.Guard
	name  string
	// input is the generated type of the request, nil if none is linked in;
	// fields are the rule's placeholders in it.
	input  protoreflect.MessageType
	fields map[string]path
}

func newMethod(name string, guard *core.Guard) *method {
	m := &method{guard: guard, name: name}
	desc := findMethod(protoregistry.GlobalFiles, name)
	if desc == nil {
		return m
	}
	input, err := protoregistry.GlobalTypes.FindMessageByName(desc.Input().FullName())
	if err != nil {
		return m
	}
	m.input, m.fields = input, make(map[string]path)
	for _, p := range guard.Placeholders() {
		if p.Source != core.SourceParam {
			continue
		}
		// What cannot be found is refused by the calls, and by Validate earlier.
		if fields, err := resolve(input.Descriptor(), p.Name); err == nil {
			m.fields[p.Name] = fields
		}
	}
	return m
}

// request is a call for the guard. A stream's message is received when somebody
// asks for it: a rule on metadata alone does not have to wait for one.
type request struct {
	*method
	ctx    context.Context
	msg    any     // of a unary call
	stream *stream // of any other
}

// errNoProto is the server's mistake: its codec is another, or the method's
// generated code is not linked in.
var errNoProto = fmt.Errorf("%w: the request is no generated protobuf message", core.ErrNoParam)

// message returns the request message, of a stream the first one.
func (q *request) message() (proto.Message, error) {
	if q.stream != nil {
		return q.stream.receive(q.input)
	}
	if m, ok := q.msg.(proto.Message); ok {
		return m, nil
	}
	return nil, errNoProto
}

// Route returns the full method.
func (q *request) Route() (string, bool) { return q.name, true }

// Param returns a field of the message as text, "" for one that is not set.
func (q *request) Param(name string) (string, error) {
	msg, err := q.message()
	if err != nil {
		return "", err
	}
	m := msg.ProtoReflect()
	fields, known := q.fields[name]
	// A message of a type of its own (dynamicpb) has descriptors of its own, and
	// a KeyFunc may ask for any field.
	if !known || m.Descriptor() != q.input.Descriptor() {
		if fields, err = resolve(m.Descriptor(), name); err != nil {
			return "", fmt.Errorf("%w: %w", core.ErrNoParam, err)
		}
	}
	return fields.text(m), nil
}

// Header returns metadata. Host is what HTTP/2 calls :authority, so that a rule
// means the same behind REST.
func (q *request) Header(name string) []string {
	if name == "Host" {
		name = ":authority"
	}
	return metadata.ValueFromIncomingContext(q.ctx, name)
}

// Query returns nothing; FromProto and Validate refuse rules that ask for it.
func (q *request) Query(string) []string { return nil }

// Body returns the message in deterministic wire format.
func (q *request) Body(limit int64) ([]byte, error) {
	m, err := q.message()
	switch {
	case err != nil:
		return nil, err
	case int64(proto.Size(m)) > limit:
		return nil, core.ErrBodyLimit
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil { // a required field of proto2 is missing
		return nil, errors.Join(core.ErrKey, err)
	}
	return b, nil
}

// Native returns the message, of a stream the first one, nil if there is none.
func (q *request) Native() any {
	if q.stream == nil {
		return q.msg
	}
	m, err := q.message()
	if err != nil {
		return nil
	}
	return m
}
