package grpclock

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/grpclock/lockpb"
	"github.com/interlock-go/interlock/internal/grpcx"
)

// ProtoOption configures [FromProto], [Rules.Validate] and [Methods.Validate]: where they
// find descriptors, and which options the rules get.
type ProtoOption func(*protoOptions)

type protoOptions struct {
	files *protoregistry.Files
	rule  []core.GuardOption
}

func newProtoOptions(opts []ProtoOption) protoOptions {
	o := protoOptions{files: protoregistry.GlobalFiles}
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// Files sets the protos to read. Default, and if files is nil: all protos whose
// generated code is linked into the program ([protoregistry.GlobalFiles]).
func Files(files *protoregistry.Files) ProtoOption {
	return func(o *protoOptions) {
		if files != nil {
			o.files = files
		}
	}
}

// RuleOptions adds options to every rule that [FromProto] makes. They set what an
// annotation cannot express, such as [core.MaxHold] or [core.FailOpen], and give
// defaults for what it can: a value in the annotation takes precedence.
// [Rules.Validate] ignores them. Default: no options.
func RuleOptions(opts ...core.GuardOption) ProtoOption {
	return func(o *protoOptions) { o.rule = append(o.rule, opts...) }
}

// FromProto makes the rules of all methods that have the option
// (interlock.v1.serialize) (see package [lockpb]). Call it once at start-up.
//
// It returns [core.ErrConfig] if an annotation cannot work. The error names every
// such method, the field and what is accepted. Causes are a bad template or
// duration, a field that does not exist, a field whose type cannot be part of a key
// or does not fit its form, and a method that declares NO_SIDE_EFFECTS.
//
// The rules may include services that this program only calls; the program never
// uses their rules.
func FromProto(l *core.Locker, opts ...ProtoOption) (Rules, error) {
	o := newProtoOptions(opts)
	rules := Rules{}
	var errs []error
	o.files.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		for service := range each(file.Services()) {
			for method := range each(service.Methods()) {
				name := fmt.Sprintf("/%s/%s", service.FullName(), method.Name())
				guard, err := o.guard(l, method)
				if err != nil {
					errs = append(errs, bad(name, err))
				} else if guard != nil {
					rules[name] = guard
				}
			}
		}
		return true
	})
	if err := joined(errs); err != nil {
		return nil, err
	}
	return rules, nil
}

// guard makes the rule of a method. It returns nil if the method has no annotation.
func (o *protoOptions) guard(l *core.Locker, method protoreflect.MethodDescriptor) (*core.Guard, error) {
	// Files that were loaded at run time may hold the option as unknown bytes or
	// as a dynamic message. Encoding and decoding makes it a *lockpb.Serialize.
	wire, err := proto.Marshal(method.Options())
	if err != nil {
		return nil, err
	}
	options := new(descriptorpb.MethodOptions)
	if err := proto.Unmarshal(wire, options); err != nil {
		return nil, err
	}
	if !proto.HasExtension(options, lockpb.E_Serialize) {
		return nil, nil //nolint:nilnil // neither a rule nor an error
	}
	a, _ := proto.GetExtension(options, lockpb.E_Serialize).(*lockpb.Serialize)
	keys := a.GetKeys()
	if a.GetKey() != "" {
		keys = append([]string{a.GetKey()}, keys...)
	}
	rule := slices.Clip(o.rule) // every method appends to it
	switch {
	case options.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS &&
		a.GetMode() == lockpb.Serialize_EXCLUSIVE && a.GetAtMost() == 0:
		return nil, errors.New("idempotency_level is NO_SIDE_EFFECTS: what changes nothing needs no lock of its own; " +
			"drop one of the two, or share the lock by mode: SHARED")
	case a.GetMode() != lockpb.Serialize_EXCLUSIVE && a.GetMode() != lockpb.Serialize_SHARED:
		return nil, fmt.Errorf("mode %v is not known: accepted are EXCLUSIVE and SHARED", a.GetMode())
	case a.GetMode() == lockpb.Serialize_SHARED && a.GetAtMost() > 0:
		return nil, errors.New("mode and at_most together: give one of them")
	case len(keys) == 0:
		return nil, errors.New("neither key nor keys is given: write the key of what is locked, such as account/{id}")
	case a.GetKey() != "" && len(keys) > 1:
		return nil, errors.New("key and keys together: give one of them")
	case a.GetNoWait() && a.Wait != nil:
		return nil, errors.New("wait and no_wait together: give one of them")
	case a.GetNoWait():
		rule = append(rule, core.Wait(0))
	case a.Wait != nil:
		if err := a.Wait.CheckValid(); err != nil {
			return nil, fmt.Errorf("wait: %w", err)
		}
		rule = append(rule, core.Wait(a.Wait.AsDuration()))
	}
	if a.Ttl != nil {
		if err := a.Ttl.CheckValid(); err != nil {
			return nil, fmt.Errorf("ttl: %w", err)
		}
		rule = append(rule, core.TTL(a.Ttl.AsDuration()))
	}
	switch {
	case a.GetMode() == lockpb.Serialize_SHARED:
		rule = append(rule, core.Shared())
	case a.GetAtMost() > 0:
		rule = append(rule, core.Permits(int(a.GetAtMost())))
	}
	for _, key := range keys[1:] {
		rule = append(rule, core.And(key))
	}
	guard, err := core.NewGuard(l, keys[0], rule...)
	if err != nil {
		return nil, err
	}
	return guard, checkFields(guard, method.Input())
}

// Validate compares the rules with a server. Register all services first, and call
// Validate before Serve. It returns [core.ErrConfig] if a rule cannot work: the
// service does not have the method, or the request does not have the field, or the
// field cannot be part of a key. The error names every such method, the field and
// what is accepted.
//
// A rule for a service that the server does not have is an error, unless a known
// proto has the method: a program may be linked with more services than it serves.
// If the proto of a registered service is not known ([Files]), Validate checks the
// method's name only.
func (r Rules) Validate(server interface {
	GetServiceInfo() map[string]grpc.ServiceInfo
}, opts ...ProtoOption,
) error {
	o := newProtoOptions(opts)
	services := server.GetServiceInfo()
	var errs []error
	for name, guard := range r {
		if err := o.check(services, name, guard); err != nil {
			errs = append(errs, bad(name, err))
		}
	}
	return joined(errs)
}

// check is Validate for one rule.
func (o *protoOptions) check(services map[string]grpc.ServiceInfo, fullMethod string, guard *core.Guard) error {
	service, name, ok := grpcx.SplitMethod(fullMethod)
	if !ok {
		return errors.New("a rule is for a full method, /package.Service/Method")
	}
	if guard == nil {
		return errors.New("the guard is nil; core.Serialize makes one")
	}
	desc := grpcx.FindMethod(o.files, fullMethod)
	if info, served := services[service]; served {
		known := make([]string, len(info.Methods))
		for i, m := range info.Methods {
			known[i] = m.Name
		}
		if !slices.Contains(known, name) {
			return fmt.Errorf("service %s has no such method; it has %s", service, strings.Join(known, ", "))
		}
	} else if desc == nil {
		if sd := grpcx.FindService(o.files, service); sd != nil {
			return fmt.Errorf("service %s has no such method; it has %s", service, grpcx.Names(sd.Methods()))
		}
		return fmt.Errorf("no such service; registered are %s", strings.Join(slices.Sorted(maps.Keys(services)), ", "))
	}
	if desc == nil {
		return nil
	}
	return checkFields(guard, desc.Input())
}

// checkFields checks that the request message has the fields of a rule's
// placeholders.
func checkFields(guard *core.Guard, input protoreflect.MessageDescriptor) error {
	for _, p := range guard.Placeholders() {
		switch p.Source {
		case adapter.SourceParam:
			field, err := grpcx.Resolve(input, p.Name)
			if err == nil {
				err = field.Fits(core.Form(p.Form))
			}
			if err != nil {
				return fmt.Errorf("{%s}: %w", p.Name, err)
			}
		case adapter.SourceQuery:
			return fmt.Errorf("{query.%s}: a call has no query parameters; accepted are {field}, {header.Name} and {ctx.name}", p.Name)
		}
	}
	return nil
}

// bad adds the name of the method to an error.
func bad(fullMethod string, err error) error {
	if errors.Is(err, core.ErrConfig) { // wrapped by core already
		return fmt.Errorf("grpclock: method %q: %w", fullMethod, err)
	}
	return fmt.Errorf("%w: method %q: %w", core.ErrConfig, fullMethod, err)
}

// joined makes one error of all, in a fixed order.
func joined(errs []error) error {
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

// each ranges over a list of descriptors.
func each[D any](list interface {
	Len() int
	Get(i int) D
},
) func(yield func(D) bool) {
	return func(yield func(D) bool) {
		for i := range list.Len() {
			if !yield(list.Get(i)) {
				return
			}
		}
	}
}
