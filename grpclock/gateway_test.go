package grpclock_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/grpclock/internal/testpb"
	"github.com/interlock-go/interlock/grpclock/lockpb"
	"github.com/interlock-go/interlock/internal/testkit"
)

// stray is how a gateway that was given the service calls it: with metadata and a stream for
// header and trailer, and no interceptor.
type stray struct{}

func (stray) Method() string               { return "" }
func (stray) SetHeader(metadata.MD) error  { return nil }
func (stray) SendHeader(metadata.MD) error { return nil }
func (stray) SetTrailer(metadata.MD) error { return nil }
func (s stray) context(t *testing.T) context.Context {
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("idempotency-key", "k"))
	return grpc.NewContextWithServerTransportStream(ctx, s)
}

// The package comment says how a service finds out that it was called past the interceptors.
func TestAServiceNoticesACallPastTheInterceptors(t *testing.T) {
	locker := testkit.Locker(t)
	engine := testkit.Engine(t, idempotency.Under(core.Serialize(locker, "account/{id}")))
	b := bank{call: func(ctx context.Context, _ string) (string, error) {
		err := errors.Join(idempotency.MarkEffect(ctx), core.Commit(ctx, func() error { return nil }))
		if (core.LeaseFromContext(ctx) == nil) != (err != nil) || (idempotency.Generation(ctx) == 0) != (err != nil) {
			t.Errorf("lease %v, generation %d, %v", core.LeaseFromContext(ctx), idempotency.Generation(ctx), err)
		}
		return "paid", err
	}}
	methods := grpclock.Methods{debit: engine}
	client := testpb.NewBankClient(dial(t, start(t, b, grpc.UnaryInterceptor(grpclock.Protect(nil, methods).Unary()))))
	ctx := metadata.AppendToOutgoingContext(t.Context(), "idempotency-key", "k")
	if _, err := client.Debit(ctx, &testpb.Request{Id: "1"}); err != nil {
		t.Error(err)
	}
	_, err := b.Debit(stray{}.context(t), &testpb.Request{Id: "1"})
	if !errors.Is(err, idempotency.ErrNoAttempt) || !errors.Is(err, core.ErrNoLease) {
		t.Error(err)
	}
}

// runtime and bankpb stand for the packages of a grpc-gateway, which this module does not
// depend on.
var (
	runtime gatewayRuntime
	bankpb  generated
)

type (
	gatewayRuntime struct{}
	generated      struct{}
	matcher        func(string) (string, bool)
	gatewayMux     struct{ matcher }
)

func (gatewayRuntime) WithIncomingHeaderMatcher(m matcher) matcher { return m }
func (gatewayRuntime) NewServeMux(m matcher) gatewayMux            { return gatewayMux{m} }

func (gatewayRuntime) DefaultHeaderMatcher(name string) (string, bool) {
	return strings.CutPrefix(name, "Grpc-Metadata-")
}

func (generated) RegisterBankHandler(context.Context, gatewayMux, *grpc.ClientConn) error { return nil }

func TestAGatewayHandsTheIdempotencyKeyOn(t *testing.T) {
	ctx, conn, err := t.Context(), (*grpc.ClientConn)(nil), error(nil)
	mux := runtime.NewServeMux(runtime.WithIncomingHeaderMatcher(grpclock.GatewayHeader(runtime.DefaultHeaderMatcher)))
	err = bankpb.RegisterBankHandler(ctx, mux, conn)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"Idempotency-Key": "idempotency-key", "idempotency-key": "idempotency-key", "Grpc-Metadata-X": "X", "X": "",
	} {
		if key, ok := mux.matcher(name); ok != (want != "") || ok && key != want {
			t.Errorf("%s: %q, %v", name, key, ok)
		}
	}
}

func TestValidateFindsAFieldThatAnIdempotentMethodDoesNotHave(t *testing.T) {
	locker, engine := testkit.Locker(t), testkit.Engine(t)
	srv := grpc.NewServer()
	testpb.RegisterBankServer(srv, bank{})
	rules := annotated(t, locker)
	delete(rules, debit)
	under := func(template string) *grpclock.Protection {
		return taken(grpclock.Protect(rules, grpclock.Methods{debit: engine.With(idempotency.Under(core.Serialize(locker, template)))}))
	}
	if err := under("account/{id}/{header.X}").Validate(srv); err != nil {
		t.Error(err)
	}
	for template, says := range map[string][]string{
		"account/{account_id}": {`method "` + debit + `"`, "{account_id}", "id, amount"},
		"account/{query.id}":   {`method "` + debit + `"`, "{query.id}"},
	} {
		err := under(template).Validate(srv)
		if !errors.Is(err, core.ErrConfig) {
			t.Errorf("%s: %v", template, err)
			continue
		}
		for _, part := range says {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q does not say %q", template, err, part)
			}
		}
	}
	// The proto of a method that is not linked into the program.
	late := services{"late.v1.Late": {Methods: []grpc.MethodInfo{{Name: "Do"}}}}
	methods := taken(grpclock.Protect(nil, grpclock.Methods{
		"/late.v1.Late/Do": engine.With(idempotency.Under(core.Serialize(locker, "a/{nope}"))),
	}))
	if err := methods.Validate(late); err != nil {
		t.Error(err)
	}
	if err := methods.Validate(late, grpclock.Files(files(t, &lockpb.Serialize{Key: "k"}))); !errors.Is(err, core.ErrConfig) {
		t.Error(err)
	}
}
