package grpcx

import (
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/interlock-go/interlock/core"
)

// Path leads from a message through nested ones to a field that a key can be
// made of.
type Path []protoreflect.FieldDescriptor

// Resolve finds a field by its names in the proto, with dots between them. Its errors name
// the existing fields.
func Resolve(desc protoreflect.MessageDescriptor, name string) (Path, error) {
	var fields Path
	parts := strings.Split(name, ".")
	for i, part := range parts {
		fd := desc.Fields().ByName(protoreflect.Name(part))
		last := i == len(parts)-1
		switch {
		case fd == nil:
			return nil, fmt.Errorf("message %s has no field %q; it has %s", desc.FullName(), part, Names(desc.Fields()))
		case fd.Cardinality() == protoreflect.Repeated:
			return nil, fmt.Errorf("field %s is repeated, and a key takes one value; %s has %s", fd.FullName(), desc.FullName(), Names(desc.Fields()))
		case last && fd.Message() != nil:
			return nil, fmt.Errorf("field %s is a message; name a field in it: %s has %s", fd.FullName(), fd.Message().FullName(), Names(fd.Message().Fields()))
		case !last && fd.Message() == nil:
			return nil, fmt.Errorf("field %s is of type %s, and has no field %q in it", fd.FullName(), fd.Kind(), parts[i+1])
		case last && format(fd.Kind()) == nil:
			return nil, fmt.Errorf("field %s is of type %s; accepted in a key are strings, integers, bools and enums; %s has %s", fd.FullName(), fd.Kind(), desc.FullName(), Names(desc.Fields()))
		}
		fields, desc = append(fields, fd), fd.Message()
	}
	return fields, nil
}

// Fits says why values of the field cannot be of a form, nil if they can.
func (p Path) Fits(form core.Form) error {
	fd := p[len(p)-1]
	switch kind := fd.Kind(); {
	case form == "", kind == protoreflect.StringKind:
		return nil
	case form == core.FormInt && kind != protoreflect.BoolKind: // integers, and enums by number
		return nil
	case form == core.FormInt:
		return fmt.Errorf("field %s is of type %s; the form int is for strings, integers and enums", fd.FullName(), kind)
	default:
		return fmt.Errorf("field %s is of type %s; the form %s is for strings", fd.FullName(), kind, form)
	}
}

// Text returns the field's value in a message, "" for a field that is not set: zero
// is a value only where the field has presence.
func (p Path) Text(m protoreflect.Message) string {
	last := len(p) - 1
	for _, fd := range p[:last] {
		m = m.Get(fd).Message() // in a message that is not set nothing is set
	}
	if fd := p[last]; m.Has(fd) {
		return format(fd.Kind())(m.Get(fd))
	}
	return ""
}

// format returns how values of a kind are written, nil for kinds that are not
// accepted: the form of a number with a fraction or of raw bytes is a matter of
// taste, and a resource must have one name.
func format(k protoreflect.Kind) func(protoreflect.Value) string {
	switch k {
	case protoreflect.StringKind:
		return protoreflect.Value.String
	case protoreflect.BoolKind:
		return func(v protoreflect.Value) string { return strconv.FormatBool(v.Bool()) }
	case protoreflect.EnumKind: // a name can be changed without breaking the wire
		return func(v protoreflect.Value) string { return strconv.Itoa(int(v.Enum())) }
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind,
		protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return func(v protoreflect.Value) string { return strconv.FormatInt(v.Int(), 10) }
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind, protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return func(v protoreflect.Value) string { return strconv.FormatUint(v.Uint(), 10) }
	}
	return nil
}

// FindMethod finds "/package.Service/Method" among files, nil if it is not there.
func FindMethod(files *protoregistry.Files, fullMethod string) protoreflect.MethodDescriptor {
	service, name, _ := SplitMethod(fullMethod)
	if sd := FindService(files, service); sd != nil {
		return sd.Methods().ByName(protoreflect.Name(name))
	}
	return nil
}

// FindService finds a service by its full name, nil if it is not there.
func FindService(files *protoregistry.Files, name string) protoreflect.ServiceDescriptor {
	d, err := files.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return nil
	}
	sd, _ := d.(protoreflect.ServiceDescriptor)
	return sd
}

// SplitMethod takes "/package.Service/Method" apart; ok says that it is of that form.
func SplitMethod(fullMethod string) (service, name string, ok bool) {
	service, name, ok = strings.Cut(strings.TrimPrefix(fullMethod, "/"), "/")
	return service, name, ok && strings.HasPrefix(fullMethod, "/") && service != "" && name != ""
}

// Names lists fields or methods for a message, in their order in the proto.
func Names[D protoreflect.Descriptor](list interface {
	Len() int
	Get(i int) D
},
) string {
	all := make([]string, list.Len())
	for i := range all {
		all[i] = string(list.Get(i).Name())
	}
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, ", ")
}
