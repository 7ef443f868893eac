package grpclock_test

import (
	"context"
	"log/slog"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/grpclock/internal/testpb"
	"github.com/interlock-go/interlock/internal/testkit"
)

// FuzzKeys calls with a message and metadata of any content. A call is refused as
// the client's mistake, or locks the key of exactly the values that it has.
func FuzzKeys(f *testing.F) {
	message := func(id string) []byte {
		b, err := proto.Marshal(&testpb.Request{Id: id})
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	f.Add(message("42"), "x-tenant", "acme", "x-other", "b")
	f.Add(message("a/b"), "x-tenant", "a", "x-tenant", "b")
	f.Add(message(""), "X-Tenant", "{}", "", "")
	f.Add(message("%2F"), "x-tenant", "", ":authority", "h")
	f.Add([]byte("\x0a\xff\xff\xff\xff\x0f"), "x-tenant", "\xff\x00", "x-tenant-bin", "b")
	old := slog.Default()
	slog.SetDefault(slog.New(slog.DiscardHandler)) // for a rule that does not fit its method
	defer slog.SetDefault(old)
	info := &grpc.UnaryServerInfo{FullMethod: testpb.Bank_Get_FullMethodName}
	intercept := grpclock.Protect(grpclock.Rules{
		info.FullMethod: core.Serialize(testkit.Locker(f), "account/{id}/{header.X-Tenant}"),
	}, nil).Unary()
	f.Fuzz(func(t *testing.T, body []byte, name1, value1, name2, value2 string) {
		msg := new(testpb.Request)
		if proto.Unmarshal(body, msg) != nil {
			return // grpc-go refuses it before any interceptor
		}
		md := metadata.Pairs(name1, value1, name2, value2)
		ran := false
		_, err := intercept(metadata.NewIncomingContext(t.Context(), md), msg, info, func(ctx context.Context, _ any) (any, error) {
			ran = true
			tenants := md.Get("x-tenant")
			if len(tenants) != 1 {
				t.Errorf("%q: ran with %d tenants", md, len(tenants))
				return nil, nil
			}
			want, err := core.Key("account", msg.GetId(), tenants[0])
			if got := core.LeaseFromContext(ctx).Key(); got != want || err != nil {
				t.Errorf("%q, %q: the key is %q, want %q, %v", msg.GetId(), md, got, want, err)
			}
			return nil, nil
		})
		if !ran && status.Code(err) != codes.InvalidArgument || ran && err != nil {
			t.Errorf("%q, %q: %v", msg.GetId(), md, err)
		}
	})
}
