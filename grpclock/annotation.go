package grpclock

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/grpclock/lockpb"
)

// ProtoOption configures [FromProto] and [Protection.Validate]: where they
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

// Files sets the protos to read. Default, and if files is nil: all protos with generated code
// in the program ([protoregistry.GlobalFiles]).
func Files(files *protoregistry.Files) ProtoOption {
	return func(o *protoOptions) {
		if files != nil {
			o.files = files
		}
	}
}

// RuleOptions adds options to every rule that [FromProto] makes. They set options
// that an annotation cannot express, such as [core.MaxHold] or [core.FailOpen],
// and give defaults for the others: a value in the annotation takes precedence.
// [Protection.Validate] ignores them. Default: no options.
func RuleOptions(opts ...core.GuardOption) ProtoOption {
	return func(o *protoOptions) { o.rule = append(o.rule, opts...) }
}

// FromProto makes the rules of all methods that have the option
// (interlock.v1.serialize) (see package [lockpb]). Call it once at start-up.
//
// It returns [core.ErrConfig] if an annotation cannot work. The error names every
// such method, the field and the accepted values. Causes are a bad template or
// duration, a field that does not exist, a field with a type that cannot be part of
// a key or does not fit its form, and a method that declares NO_SIDE_EFFECTS.
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

// declaration returns the annotation of a method and the method's options. The annotation
// is nil if there is none.
func declaration(method protoreflect.MethodDescriptor) (*lockpb.Serialize, *descriptorpb.MethodOptions, error) {
	// Files that were loaded at run time may hold the option as unknown bytes or
	// as a dynamic message. Encoding and decoding makes it a *lockpb.Serialize.
	wire, err := proto.Marshal(method.Options())
	if err != nil {
		return nil, nil, err
	}
	options := new(descriptorpb.MethodOptions)
	if err := proto.Unmarshal(wire, options); err != nil {
		return nil, nil, err
	}
	if !proto.HasExtension(options, lockpb.E_Serialize) {
		return nil, options, nil
	}
	a, _ := proto.GetExtension(options, lockpb.E_Serialize).(*lockpb.Serialize)
	return a, options, nil
}

// guard makes the rule of a method. It returns nil if the method has no annotation.
func (o *protoOptions) guard(l *core.Locker, method protoreflect.MethodDescriptor) (*core.Guard, error) {
	a, options, err := declaration(method)
	if a == nil || err != nil {
		return nil, err
	}
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
