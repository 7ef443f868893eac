package grpclock_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/grpclock/internal/testpb"
	"github.com/interlock-go/interlock/internal/testkit"
)

// A service has its effect, calls another one, which refuses, and returns the
// error as it is. Its client must not take the refusal for a refusal of the first.
func TestRefusalThatAServerHandsOnIsTriedAgainByNoClient(t *testing.T) {
	locker := testkit.Locker(t)
	rules := annotated(t, locker)
	lease, err := locker.Lock(t.Context(), "account/1")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lease.Release(t.Context()) }()
	next := serve(t, never(t), rules)

	effects := 0
	pay := func(ctx context.Context) error {
		effects++
		var trailer metadata.MD
		_, err := next.Try(ctx, &testpb.Request{Id: "1"}, grpc.Trailer(&trailer))
		if hint, _ := grpc.Method(ctx); strings.HasSuffix(hint, "/Try") {
			_ = grpc.SetTrailer(ctx, trailer) // a proxy does
		}
		return err
	}
	first := bank{
		call:   func(ctx context.Context, _ string) (string, error) { return "", pay(ctx) },
		export: func(_ *testpb.Request, s testpb.Bank_ExportServer) error { return pay(s.Context()) },
	}
	ours := []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(
			grpclock.Protect(nil, grpclock.Methods{debit: testkit.Engine(t)}).Unary(), grpclock.Protect(rules, nil).Unary()),
		grpc.StreamInterceptor(grpclock.Protect(rules, nil).Stream()),
	}
	retry := grpc.WithChainUnaryInterceptor(grpclock.UnaryClientIdempotencyKey(), grpclock.UnaryClientRetry())
	guarded := testpb.NewBankClient(dial(t, start(t, first, ours...), retry))
	bare := testpb.NewBankClient(dial(t, start(t, first), retry))
	r := &testpb.Request{Id: "2"}

	for name, c := range map[string]struct {
		call func(ctx context.Context, opts ...grpc.CallOption) error
		bare bool
	}{
		"without a rule": {func(ctx context.Context, opts ...grpc.CallOption) error {
			_, err := guarded.Get(ctx, r, opts...)
			return err
		}, false},
		"idempotent": {func(ctx context.Context, opts ...grpc.CallOption) error {
			_, err := guarded.Debit(ctx, r, opts...)
			return err
		}, false},
		"same method": {func(ctx context.Context, opts ...grpc.CallOption) error {
			_, err := guarded.Try(ctx, r, opts...)
			return err
		}, false},
		"stream": {func(ctx context.Context, opts ...grpc.CallOption) error {
			s, err := guarded.Export(ctx, r, opts...)
			if err == nil {
				_, err = s.Recv()
			}
			return err
		}, false},
		"without interceptors": {func(ctx context.Context, opts ...grpc.CallOption) error {
			_, err := bare.Get(ctx, r, opts...)
			return err
		}, true},
	} {
		effects = 0
		var trailer metadata.MD
		err := c.call(t.Context(), grpc.Trailer(&trailer))
		if effects != 1 || status.Code(err) != codes.Aborted {
			t.Errorf("%s: %d effects, %v", name, effects, err)
		}
		var method string
		hint := false
		for _, d := range status.Convert(err).Details() {
			switch d := d.(type) {
			case *errdetails.ErrorInfo:
				method = d.GetMetadata()["method"]
			case *errdetails.RetryInfo:
				hint = true
			}
		}
		if method != "/interlock.test.v1.Bank/Try" || hint != c.bare {
			t.Errorf("%s: refused was %q; with RetryInfo: %v", name, method, hint)
		}
		if got := trailer.Get("grpc-retry-pushback-ms"); !c.bare && !slices.Contains(got, "-1") {
			t.Errorf("%s: push-back %q", name, got)
		}
	}
}
