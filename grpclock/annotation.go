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
	"github.com/interlock-go/interlock/grpclock/lockpb"
	"github.com/interlock-go/interlock/internal/grpcx"
)

// ProtoOption changes where descriptors are found, and what rules are made of
// them.
type ProtoOption func(*protoOptions)

type protoOptions struct {
	files *protoregistry.Files
	rule  []core.Option
}

func newProtoOptions(opts []ProtoOption) protoOptions {
	o := protoOptions{files: protoregistry.GlobalFiles}
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// Files says which protos to look at. Default, and for nil: all whose generated
// code is linked into the program (protoregistry.GlobalFiles).
func Files(files *protoregistry.Files) ProtoOption {
	return func(o *protoOptions) {
		if files != nil {
			o.files = files
		}
	}
}

// RuleOptions gives all rules options that an annotation does not have, such as
// core.MaxHold or core.FailOpen, and defaults for those that it has. Default:
// none.
func RuleOptions(opts ...core.Option) ProtoOption {
	return func(o *protoOptions) { o.rule = append(o.rule, opts...) }
}

// FromProto makes the rules of all methods that are annotated with
// (interlock.v1.serialize); see package lockpb. Call it once at start-up. It
// returns core.ErrConfig if an annotation cannot work, which names every such
// method, the field and what there is: a bad template or duration, a field that
// does not exist, has no type that a key can be made of or none that its form fits, and a method that
// declares NO_SIDE_EFFECTS.
//
// Services that this program only calls may be among them; their rules are never
// used.
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

// guard makes a method's rule, or nil if it has no annotation.
func (o *protoOptions) guard(l *core.Locker, method protoreflect.MethodDescriptor) (*core.Guard, error) {
	// Files that were loaded at run time may hold the option as unknown bytes,
	// or as a dynamic message: once more over the wire it is ours.
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
	rule := slices.Clip(o.rule) // appended to by every method
	switch {
	case options.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS:
		return nil, errors.New("idempotency_level is NO_SIDE_EFFECTS: what changes nothing needs no lock; drop one of the two")
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
	for _, key := range keys[1:] {
		rule = append(rule, core.And(key))
	}
	guard, err := core.NewGuard(l, keys[0], rule...)
	if err != nil {
		return nil, err
	}
	return guard, checkFields(guard, method.Input())
}

// Validate holds the rules against a server with all its services registered,
// and returns core.ErrConfig if one cannot work: a method that the service does
// not have, a field that its request does not have or that no key can be made
// of. Every error names the method, the field and what there is. Call it before
// Serve.
//
// A rule for a service that the server does not have is a mistake unless the
// protos know the method: a program may be linked with more services than it
// serves. A registered service whose protos are not known (Files) is not checked
// further.
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

// checkFields looks for a rule's placeholders in the request message.
func checkFields(guard *core.Guard, input protoreflect.MessageDescriptor) error {
	for _, p := range guard.Placeholders() {
		switch p.Source {
		case core.SourceParam:
			field, err := grpcx.Resolve(input, p.Name)
			if err == nil {
				err = field.Fits(p.Form)
			}
			if err != nil {
				return fmt.Errorf("{%s}: %w", p.Name, err)
			}
		case core.SourceQuery:
			return fmt.Errorf("{query.%s}: a call has no query parameters; accepted are {field}, {header.Name} and {ctx.name}", p.Name)
		}
	}
	return nil
}

// bad says which method an error is about.
func bad(fullMethod string, err error) error {
	if errors.Is(err, core.ErrConfig) { // the core has said so already
		return fmt.Errorf("grpclock: method %q: %w", fullMethod, err)
	}
	return fmt.Errorf("%w: method %q: %w", core.ErrConfig, fullMethod, err)
}

// joined makes one error of all, in an order that does not change.
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
