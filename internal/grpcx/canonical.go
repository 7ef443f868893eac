package grpcx

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxDepth is up to where messages within messages are put in order.
const maxDepth = 100

// Canonical is the wire format of a message with the fields of each message in the
// order of their numbers. It is the same in servers with different versions of a
// proto: proto.Marshal writes a field that this server does not know after all
// others; a server that knows the field writes it in its place. Two differences
// remain: the order of a map, and of the parts of a field without packing, in a
// field that is not known.
func Canonical(m proto.Message) ([]byte, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	canonical, _ := ordered(b, m.ProtoReflect().Descriptor(), maxDepth)
	return canonical, nil
}

// field is one field on the wire.
type field struct {
	number protowire.Number
	bytes  []byte
}

// ordered puts the fields of a message in order, and reports whether they were in
// another. desc is nil for a message that is not known; bytes that are none then
// are returned as they are.
func ordered(b []byte, desc protoreflect.MessageDescriptor, depth int) (_ []byte, changed bool) {
	var fields []field
	for rest := b; len(rest) > 0; {
		number, kind, tag := protowire.ConsumeTag(rest)
		if tag < 0 {
			return b, false
		}
		size := protowire.ConsumeFieldValue(number, kind, rest[tag:])
		if size < 0 {
			return b, false
		}
		f := field{number, rest[:tag+size]}
		if inner, is := messageIn(desc, number); is && kind == protowire.BytesType && depth > 0 {
			value, _ := protowire.ConsumeBytes(rest[tag:])
			if in, other := ordered(value, inner, depth-1); other {
				f.bytes = protowire.AppendBytes(protowire.AppendTag(nil, number, kind), in)
				changed = true
			}
		}
		changed = changed || len(fields) > 0 && number < fields[len(fields)-1].number
		fields = append(fields, f)
		rest = rest[tag+size:]
	}
	if !changed {
		return b, false
	}
	slices.SortStableFunc(fields, func(a, b field) int { return int(a.number) - int(b.number) })
	sorted := make([]byte, 0, len(b))
	for _, f := range fields {
		sorted = append(sorted, f.bytes...)
	}
	return sorted, true
}

// messageIn reports whether a field may hold a message, and the message's type if that
// is known. A field that is not known may: another server knows better.
func messageIn(desc protoreflect.MessageDescriptor, number protowire.Number) (protoreflect.MessageDescriptor, bool) {
	if desc == nil {
		return nil, true
	}
	f := desc.Fields().ByNumber(number)
	if f == nil {
		return nil, true
	}
	return f.Message(), f.Message() != nil
}
