package grpcx

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// order is a version of a proto: message Order with the fields that this version
// has: {int64 id=1, Line line=2, oneof {string note=3}, repeated string tag=4, string text=5},
// and in Line {string sku=1, int64 count=2}.
func order(t testing.TB, fields, ofLine []int32) protoreflect.MessageDescriptor {
	t.Helper()
	label, many := descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL, descriptorpb.FieldDescriptorProto_LABEL_REPEATED
	number, text, line := descriptorpb.FieldDescriptorProto_TYPE_INT64, descriptorpb.FieldDescriptorProto_TYPE_STRING, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE
	all := map[int32]*descriptorpb.FieldDescriptorProto{
		1: {Name: proto.String("id"), Type: &number, Label: &label},
		2: {Name: proto.String("line"), Type: &line, TypeName: proto.String(".v.Line"), Label: &label},
		3: {Name: proto.String("note"), Type: &text, Label: &label, OneofIndex: proto.Int32(0)},
		4: {Name: proto.String("tag"), Type: &text, Label: &many},
		5: {Name: proto.String("text"), Type: &text, Label: &label},
	}
	inLine := map[int32]*descriptorpb.FieldDescriptorProto{
		1: {Name: proto.String("sku"), Type: &text, Label: &label},
		2: {Name: proto.String("count"), Type: &number, Label: &label},
	}
	message := func(name string, from map[int32]*descriptorpb.FieldDescriptorProto, known []int32) *descriptorpb.DescriptorProto {
		m := &descriptorpb.DescriptorProto{Name: &name}
		for _, n := range known {
			f := from[n]
			f.Number = proto.Int32(n)
			if f.OneofIndex != nil {
				m.OneofDecl = []*descriptorpb.OneofDescriptorProto{{Name: proto.String("choice")}}
			}
			m.Field = append(m.Field, f)
		}
		return m
	}
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("v.proto"), Package: proto.String("v"), Syntax: proto.String("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{message("Order", all, fields), message("Line", inLine, ofLine)},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return file.Messages().ByName("Order")
}

func TestCanonicalFormDoesNotDependOnWhichFieldsAreKnown(t *testing.T) {
	str := func(b []byte, n protowire.Number, s string) []byte {
		return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), s)
	}
	num := func(b []byte, n protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), v)
	}
	wire := func(first, second string) []byte { // as a client sends it
		line := num(str(nil, 1, "sku"), 2, 3)
		b := protowire.AppendBytes(protowire.AppendTag(num(nil, 1, 7), 2, protowire.BytesType), line)
		return str(str(str(str(b, 3, "note"), 4, first), 4, second), 5, "\n\x01x\n") // text that is no message
	}
	versions := map[string]protoreflect.MessageDescriptor{
		"all":                order(t, []int32{1, 2, 3, 4, 5}, []int32{1, 2}),
		"none":               order(t, nil, nil),
		"no first field":     order(t, []int32{2, 3, 4, 5}, []int32{1, 2}),
		"half a line":        order(t, []int32{1, 2, 3, 4, 5}, []int32{2}),
		"no line":            order(t, []int32{1, 3, 4, 5}, []int32{1}),
		"no repeated field":  order(t, []int32{1, 2, 3, 5}, []int32{1, 2}),
		"only what is last":  order(t, []int32{5}, nil),
		"only one of a kind": order(t, []int32{3}, nil),
	}
	form := func(b []byte, desc protoreflect.MessageDescriptor) []byte {
		m := dynamicpb.NewMessage(desc)
		if err := proto.Unmarshal(b, m); err != nil {
			t.Fatal(err)
		}
		got, err := Canonical(m)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	for name, desc := range versions {
		if got := form(wire("a", "b"), desc); !bytes.Equal(got, wire("a", "b")) {
			t.Errorf("%s: %x; want %x", name, got, wire("a", "b"))
		}
		if got := form(wire("b", "a"), desc); bytes.Equal(got, wire("a", "b")) {
			t.Errorf("%s: the order of a repeated field is lost", name)
		}
	}
}

func TestCanonicalFormOfBytesThatNestDeeplyIsTheBytes(t *testing.T) {
	b := []byte{8, 1}
	for range 5000 { // far deeper than anything is put in order
		b = protowire.AppendBytes(protowire.AppendTag(nil, 9, protowire.BytesType), b)
	}
	m := dynamicpb.NewMessage(order(t, nil, nil))
	m.SetUnknown(b)
	got, err := Canonical(m)
	if err != nil || !bytes.Equal(got, b) {
		t.Errorf("%d bytes of %d, %v", len(got), len(b), err)
	}
}
