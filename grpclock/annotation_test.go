package grpclock_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/grpclock/internal/testpb"
	"github.com/interlock-go/interlock/grpclock/lockpb"
	"github.com/interlock-go/interlock/internal/testkit"
)

// Every proto that was compiled with another number would lose its locks
// silently.
func TestNumberOfTheOptionNeverChanges(t *testing.T) {
	if n := lockpb.E_Serialize.TypeDescriptor().Number(); n != 192384255 {
		t.Errorf("%d", n)
	}
	if name := lockpb.E_Serialize.TypeDescriptor().FullName(); name != "interlock.v1.serialize" {
		t.Error(name)
	}
}

func TestAnnotatedMethodsAndNoOthersHaveRules(t *testing.T) {
	rules, err := grpclock.FromProto(testkit.Locker(t))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	for method, guard := range rules {
		names[method] = guard.Name()
	}
	want := map[string]string{
		testpb.Bank_Debit_FullMethodName:    "account/{id}",
		testpb.Bank_Transfer_FullMethodName: "account/{from},account/{to.id}",
		testpb.Bank_Try_FullMethodName:      "account/{id}",
		testpb.Bank_Upload_FullMethodName:   "account/{id}",
		testpb.Bank_Export_FullMethodName:   "account/{id}",
		testpb.Bank_Chat_FullMethodName:     "tenant/{header.x-tenant}",
	}
	if !maps.Equal(names, want) {
		t.Errorf("%v; want %v", names, want)
	}
}

func TestAnnotationAndRuleOptionsBecomeTheRulesOptions(t *testing.T) {
	locker := testkit.Locker(t)
	leases := make(chan time.Duration, 10)
	client := serve(t, bank{call: func(ctx context.Context, _ string) (string, error) {
		leases <- time.Until(core.LeaseFromContext(ctx).Deadline())
		return "", nil
	}}, annotated(t, locker, core.Wait(0), core.MaxHold(time.Hour)))
	for name, c := range map[string]struct {
		call unary
		want time.Duration
	}{
		"ttl":     {client.Try, 20 * time.Second},
		"renewed": {client.Debit, 30 * time.Second},
	} {
		if _, err := c.call(t.Context(), &testpb.Request{Id: name}); err != nil {
			t.Fatal(err)
		}
		if got := <-leases; got > c.want || got < c.want-2*time.Second {
			t.Errorf("%s: a lease of %v; want %v", name, got, c.want)
		}
	}

	// The annotation of Debit waits, also against the options; Export has none.
	client = serve(t, never(t), annotated(t, locker, core.Wait(0)))
	lease, err := locker.Lock(t.Context(), "account/1")
	if err != nil {
		t.Fatal(err)
	}
	stream, err := client.Export(t.Context(), &testpb.Request{Id: "1"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	held.of(t, err, stream.Trailer())
	_ = lease.Release(t.Context())
	if _, err := grpclock.FromProto(locker, grpclock.RuleOptions(core.Wait(-1))); !errors.Is(err, core.ErrConfig) {
		t.Errorf("a bad option: %v", err)
	}
	if _, err := grpclock.FromProto(nil); !errors.Is(err, core.ErrConfig) {
		t.Errorf("no locker: %v", err)
	}
}

// files are the protos of a service that nothing is generated for, with one
// method that has an annotation.
func files(t testing.TB, annotation *lockpb.Serialize, change ...func(*descriptorpb.MethodOptions)) *protoregistry.Files {
	t.Helper()
	options := new(descriptorpb.MethodOptions)
	proto.SetExtension(options, lockpb.E_Serialize, annotation)
	for _, f := range change {
		f(options)
	}
	// As from a descriptor set that was read without knowing the option.
	wire, err := proto.Marshal(options)
	if err != nil {
		t.Fatal(err)
	}
	if err := (proto.UnmarshalOptions{Resolver: new(protoregistry.Types)}).Unmarshal(wire, options); err != nil {
		t.Fatal(err)
	}
	if len(options.ProtoReflect().GetUnknown()) == 0 {
		t.Fatal("the option is known")
	}
	fd := new(descriptorpb.FileDescriptorProto)
	if err := prototext.Unmarshal([]byte(`
		name: "late.proto" package: "late.v1" syntax: "proto3" dependency: "test.proto"
		message_type { name: "Empty" }
		service {
			name: "Late"
			method { name: "Do" input_type: ".interlock.test.v1.Kinds" output_type: ".interlock.test.v1.Reply" }
			method { name: "Other" input_type: ".late.v1.Empty" output_type: ".interlock.test.v1.Reply" }
		}`), fd); err != nil {
		t.Fatal(err)
	}
	fd.Service[0].Method[0].Options = options
	file, err := protodesc.NewFile(fd, protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	all := new(protoregistry.Files)
	if err := all.RegisterFile(file); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestMistakesInAnAnnotationFailAtStartUpAndSayWhatThereIs(t *testing.T) {
	pureKey := func(key string) *lockpb.Serialize { return &lockpb.Serialize{Key: key} }
	pure := func(o *descriptorpb.MethodOptions) {
		o.IdempotencyLevel = descriptorpb.MethodOptions_NO_SIDE_EFFECTS.Enum()
	}
	idempotent := func(o *descriptorpb.MethodOptions) {
		o.IdempotencyLevel = descriptorpb.MethodOptions_IDEMPOTENT.Enum()
	}
	for name, c := range map[string]struct {
		a      *lockpb.Serialize
		change func(*descriptorpb.MethodOptions)
		says   []string // nothing: it is right
	}{
		"right":             {a: pureKey("k/{text}")},
		"keys":              {a: &lockpb.Serialize{Keys: []string{"k/{text}", "k/{msg.header.i32}"}}},
		"idempotent":        {a: pureKey("k/{text}"), change: idempotent},
		"wait of nothing":   {a: &lockpb.Serialize{Key: "k", Wait: &durationpb.Duration{}}},
		"no side effects":   {a: pureKey("k/{text}"), change: pure, says: []string{"NO_SIDE_EFFECTS"}},
		"unknown field":     {a: pureKey("k/{txt}"), says: []string{"{txt}", `no field "txt"`, "interlock.test.v1.Kinds", "text, maybe_text, i32"}},
		"JSON name":         {a: pureKey("k/{maybeText}"), says: []string{`no field "maybeText"`, "maybe_text"}},
		"unknown in nested": {a: pureKey("k/{msg.header.no}"), says: []string{"{header.no}", `no field "no"`, "text, maybe_text"}},
		"not nested":        {a: pureKey("k/{text.no}"), says: []string{"Kinds.text is of type string", `no field "no"`}},
		"repeated":          {a: pureKey("k/{many}"), says: []string{"Kinds.many is repeated", "text, maybe_text"}},
		"map":               {a: pureKey("k/{table}"), says: []string{"Kinds.table is repeated"}},
		"message":           {a: pureKey("k/{msg.header}"), says: []string{"Kinds.header is a message", "text, maybe_text"}},
		"bytes":             {a: pureKey("k/{raw}"), says: []string{"Kinds.raw is of type bytes", "strings, integers, bools and enums"}},
		"double":            {a: pureKey("k/{number}"), says: []string{"Kinds.number is of type double"}},
		"query":             {a: pureKey("k/{query.q}"), says: []string{"{query.q}", "no query parameters"}},
		"template":          {a: pureKey("k/{text"), says: []string{"position 3", "never closed"}},
		"second template":   {a: &lockpb.Serialize{Keys: []string{"k", "k//k"}}, says: []string{"position 3"}},
		"empty template":    {a: &lockpb.Serialize{Keys: []string{""}}, says: []string{"empty template"}},
		"no key":            {a: &lockpb.Serialize{}, says: []string{"neither key nor keys"}},
		"key and keys":      {a: &lockpb.Serialize{Key: "a", Keys: []string{"b"}}, says: []string{"key and keys together"}},
		"wait and no_wait":  {a: &lockpb.Serialize{Key: "a", NoWait: true, Wait: durationpb.New(1)}, says: []string{"wait and no_wait together"}},
		"negative wait":     {a: &lockpb.Serialize{Key: "a", Wait: durationpb.New(-1)}, says: []string{"Wait(-1ns)"}},
		"impossible wait":   {a: &lockpb.Serialize{Key: "a", Wait: &durationpb.Duration{Nanos: 2e9}}, says: []string{"wait: "}},
		"short ttl":         {a: &lockpb.Serialize{Key: "a", Ttl: durationpb.New(1)}, says: []string{"TTL(1ns)", "at least 10ms"}},
		"impossible ttl":    {a: &lockpb.Serialize{Key: "a", Ttl: &durationpb.Duration{Nanos: 2e9}}, says: []string{"ttl: "}},
		"form of a text":    {a: &lockpb.Serialize{Keys: []string{"k/{text:int}", "k/{maybe_text:uuid}", "k/{text:lower}"}}},
		"form of a number":  {a: pureKey("k/{i32:int}")},
		"form that is none": {a: pureKey("k/{text:hex}"), says: []string{"{text:hex}", `no form "hex"`, "int, uuid and lower"}},
		"form of a bool":    {a: pureKey("k/{flag:int}"), says: []string{"Kinds.flag is of type bool", "strings, integers and enums"}},
		"UUID of a number":  {a: pureKey("k/{i32:uuid}"), says: []string{"{i32}", "Kinds.i32 is of type int32", "the form uuid is for strings"}},
		"case of a number":  {a: pureKey("k/{i32:lower}"), says: []string{"Kinds.i32 is of type int32", "the form lower is for strings"}},
		"shared":            {a: &lockpb.Serialize{Key: "a", Mode: lockpb.Serialize_SHARED}},
		"shared, pure":      {a: &lockpb.Serialize{Key: "a", Mode: lockpb.Serialize_SHARED}, change: pure},
		"permits":           {a: &lockpb.Serialize{Key: "a", AtMost: 1024}},
		"many permits":      {a: &lockpb.Serialize{Key: "a", AtMost: 1025}, says: []string{"Permits(1025)", "at most 1024"}},
		"shared permits": {
			a: &lockpb.Serialize{Key: "a", AtMost: 1, Mode: lockpb.Serialize_SHARED}, says: []string{"mode and at_most together"},
		},
		"unknown mode":    {a: &lockpb.Serialize{Key: "a", Mode: 7}, says: []string{"mode 7", "EXCLUSIVE and SHARED"}},
		"unknown context": {a: pureKey("k/{ctx.user}"), says: []string{"{ctx.user}", "no ContextFunc"}},
	} {
		var change []func(*descriptorpb.MethodOptions)
		if c.change != nil {
			change = append(change, c.change)
		}
		rules, err := grpclock.FromProto(testkit.Locker(t), grpclock.Files(files(t, c.a, change...)))
		if c.says == nil {
			if err != nil || len(rules) != 1 || rules["/late.v1.Late/Do"] == nil {
				t.Errorf("%s: %v, %v", name, rules, err)
			}
			continue
		}
		if !errors.Is(err, core.ErrConfig) || rules != nil {
			t.Errorf("%s: %v, %v; want ErrConfig", name, rules, err)
			continue
		}
		for _, part := range append(c.says, `method "/late.v1.Late/Do"`) {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q does not say %q", name, err, part)
			}
		}
	}
}

func TestRuleOfALateProtoServesDynamicMessages(t *testing.T) {
	all := files(t, &lockpb.Serialize{Key: "k/{text}"})
	rules, err := grpclock.FromProto(testkit.Locker(t), grpclock.Files(all))
	if err != nil {
		t.Fatal(err)
	}
	desc := (&testpb.Kinds{}).ProtoReflect().Descriptor()
	dynamic := dynamicpb.NewMessage(desc)
	wire, err := proto.Marshal(&testpb.Kinds{Text: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(wire, dynamic); err != nil {
		t.Fatal(err)
	}
	reply, err := grpclock.Protect(rules, nil).Unary()(t.Context(), dynamic, &grpc.UnaryServerInfo{FullMethod: "/late.v1.Late/Do"},
		func(ctx context.Context, _ any) (any, error) { return core.LeaseFromContext(ctx).Key(), nil })
	if err != nil || reply != "k/x" {
		t.Errorf("%v, %v", reply, err)
	}
}

// services stands for a server.
type services map[string]grpc.ServiceInfo

func (s services) GetServiceInfo() map[string]grpc.ServiceInfo { return s }

func TestValidateFindsWhatCannotWorkBeforeTheServerServes(t *testing.T) {
	locker := testkit.Locker(t)
	srv := grpc.NewServer()
	testpb.RegisterBankServer(srv, bank{})
	other := services{
		"late.v1.Late":      {Methods: []grpc.MethodInfo{{Name: "Do"}, {Name: "Extra"}}},
		"interlock.Unknown": {Methods: []grpc.MethodInfo{{Name: "Do"}}},
	}
	// All rules of the proto, and one more.
	rule := func(method, template string) grpclock.Rules {
		rules := annotated(t, locker)
		if strings.HasPrefix(method, "/late.") { // of a server that does not know the others
			clear(rules)
		}
		rules[method] = core.Serialize(locker, template)
		return rules
	}
	late := grpclock.Files(files(t, &lockpb.Serialize{Key: "k"}))
	const get = testpb.Bank_Get_FullMethodName
	for name, c := range map[string]struct {
		rules  grpclock.Rules
		server interface {
			GetServiceInfo() map[string]grpc.ServiceInfo
		}
		opts []grpclock.ProtoOption
		says []string // nothing: it is right
	}{
		"annotated":            {annotated(t, locker), srv, nil, nil},
		"right":                {rule(get, "a/{id}/{amount}/{header.X}"), srv, nil, nil},
		"stream":               {rule(testpb.Bank_Upload_FullMethodName, "a/{id}"), srv, nil, nil},
		"served elsewhere":     {annotated(t, locker), grpc.NewServer(), nil, nil},
		"Files":                {rule("/late.v1.Late/Do", "a/{text}"), other, []grpclock.ProtoOption{late, grpclock.Files(nil)}, nil},
		"no proto known":       {rule("/interlock.Unknown/Do", "a/{id}"), other, nil, nil},
		"unknown method":       {rule("/interlock.test.v1.Bank/Credit", "a"), srv, nil, []string{"interlock.test.v1.Bank has no such method", "Debit", "Transfer"}},
		"not served, unknown":  {rule("/interlock.test.v1.Bank/Credit", "a"), grpc.NewServer(), nil, []string{"interlock.test.v1.Bank has no such method", "Debit"}},
		"known and not served": {rule("/late.v1.Late/Other", "a"), other, []grpclock.ProtoOption{late}, []string{"has no such method; it has Do, Extra"}},
		"unknown service":      {rule("/interlock.test.v1.Bnk/Debit", "a"), srv, nil, []string{"no such service", "interlock.test.v1.Bank"}},
		"no full method":       {rule("Debit", "a"), srv, nil, []string{"/package.Service/Method"}},
		"no slash in front":    {rule("interlock.test.v1.Bank/Debit", "a"), srv, nil, []string{"/package.Service/Method"}},
		"unknown field":        {rule(get, "a/{idd}"), srv, nil, []string{"{idd}", "interlock.test.v1.Request", "id, amount"}},
		"query":                {rule(get, "a/{query.q}"), srv, nil, []string{"{query.q}"}},
		"field of a late one":  {rule("/late.v1.Late/Do", "a/{many}"), other, []grpclock.ProtoOption{late}, []string{"many is repeated"}},
		"field of an empty":    {rule("/late.v1.Late/Other", "a/{id}"), grpc.NewServer(), []grpclock.ProtoOption{late}, []string{"it has none"}},
	} {
		err := taken(grpclock.Protect(c.rules, nil)).Validate(c.server, c.opts...)
		if c.says == nil {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if !errors.Is(err, core.ErrConfig) {
			t.Errorf("%s: %v; want ErrConfig", name, err)
			continue
		}
		for _, part := range append(c.says, `method "`) {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q does not say %q", name, err, part)
			}
		}
	}
	// All at once, in an order that does not change.
	both := rule(get, "a/{x}")
	maps.Copy(both, rule("/b.B/B", "b"))
	err := taken(grpclock.Protect(both, nil)).Validate(srv)
	if text := err.Error(); strings.Count(text, "bad configuration") != 2 || strings.Index(text, "/b.B/B") > strings.Index(text, "{x}") {
		t.Error(err)
	}
}
