package grpclock_test

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/grpclock/internal/testpb"
	"github.com/interlock-go/interlock/grpclock/lockpb"
	"github.com/interlock-go/interlock/internal/testkit"
)

// Each of these servers would have run a method without the lock, or without the key, that
// was declared for it.
func TestADeclarationThatNobodyFollowsFailsAtStartUp(t *testing.T) {
	locker, engine := testkit.Locker(t), testkit.Engine(t)
	srv := grpc.NewServer()
	testpb.RegisterBankServer(srv, bank{})
	all := annotated(t, locker)
	without := annotated(t, locker)
	delete(without, debit)
	under := engine.With(idempotency.Under(all[debit]))
	unaries := func(p *grpclock.Protection) { p.Unary() }
	streams := func(p *grpclock.Protection) { p.Stream() }
	both := func(p *grpclock.Protection) { p.ServerOptions() }
	const chat = testpb.Bank_Chat_FullMethodName
	for name, c := range map[string]struct {
		rules   grpclock.Rules
		methods grpclock.Methods
		take    func(*grpclock.Protection)
		says    []string // nothing: all is done
	}{
		"all":                       {all, nil, both, nil},
		"by an engine":              {without, grpclock.Methods{debit: under}, both, nil},
		"by both":                   {all, grpclock.Methods{debit: under}, both, nil},
		"behind an engine":          {all, grpclock.Methods{debit: engine}, both, nil},
		"no rule":                   {without, nil, both, []string{debit, "declares a lock, and nothing takes it"}},
		"no rules at all":           {nil, nil, both, []string{debit, chat, "declares a lock"}},
		"an engine without a lock":  {without, grpclock.Methods{debit: engine}, both, []string{debit, "declares a lock"}},
		"no interceptor":            {all, nil, func(*grpclock.Protection) {}, []string{debit, chat, "never asked for the interceptor"}},
		"no interceptor of streams": {all, nil, unaries, []string{chat, "Stream"}},
		"no interceptor of unaries": {all, grpclock.Methods{testpb.Bank_Try_FullMethodName: engine}, streams, []string{debit, testpb.Bank_Try_FullMethodName, "Unary"}},
	} {
		protection := grpclock.Protect(c.rules, c.methods)
		c.take(protection)
		err := protection.Validate(srv)
		if c.says == nil {
			if err != nil {
				t.Errorf("%s: %v; want nil", name, err)
			}
			continue
		}
		if !errors.Is(err, core.ErrConfig) {
			t.Errorf("%s: %v; want ErrConfig", name, err)
			continue
		}
		for _, part := range c.says {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q does not say %q", name, err, part)
			}
		}
	}
}

func TestAMethodThatDeclaresNoSideEffectsTakesNoKey(t *testing.T) {
	pure := func(o *descriptorpb.MethodOptions) {
		o.IdempotencyLevel = descriptorpb.MethodOptions_NO_SIDE_EFFECTS.Enum()
	}
	late := files(t, &lockpb.Serialize{Key: "k", Mode: lockpb.Serialize_SHARED}, pure)
	server := services{"late.v1.Late": {Methods: []grpc.MethodInfo{{Name: "Do"}}}}
	protection := taken(grpclock.Protect(nil, grpclock.Methods{"/late.v1.Late/Do": testkit.Engine(t)}))
	err := protection.Validate(server, grpclock.Files(late))
	if !errors.Is(err, core.ErrConfig) || !strings.Contains(err.Error(), "NO_SIDE_EFFECTS") {
		t.Errorf("%v; want ErrConfig that names NO_SIDE_EFFECTS", err)
	}
}
