package grpclock_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/grpclock/internal/testpb"
	"github.com/interlock-go/interlock/internal/testkit/freestore"
)

var answer = &testpb.Reply{}

// plain is a handler; underContext also uses its context, as a handler
// that asks a database does: the lease's context is then made in full.
func plain(context.Context, any) (any, error) { return answer, nil }

func underContext(ctx context.Context, _ any) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return answer, ctx.Err()
}

// call calls a method through the interceptor, or a handler without.
func call(tb testing.TB, intercept grpc.UnaryServerInterceptor, method string, h grpc.UnaryHandler) func() {
	ctx, req, info := tb.Context(), any(&testpb.Request{Id: "42"}), &grpc.UnaryServerInfo{FullMethod: method}
	return func() {
		var err error
		if intercept == nil {
			_, err = h(ctx, req)
		} else {
			_, err = intercept(ctx, req, info, h)
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
}

// BenchmarkUnary is the price of the interceptor: the difference between bare and
// locked; the difference between bare and looked-up is the price for a method without a rule.
func BenchmarkUnary(b *testing.B) {
	lock := grpclock.Protect(annotated(b, freestore.Locker(b)), nil).Unary()
	for _, c := range []struct {
		name      string
		intercept grpc.UnaryServerInterceptor
		method    string
		h         grpc.UnaryHandler
	}{
		{"bare", nil, "", plain},
		{"looked-up", lock, testpb.Bank_Get_FullMethodName, plain},
		{"locked", lock, testpb.Bank_Debit_FullMethodName, plain},
		{"bare-context", nil, "", underContext},
		{"locked-context", lock, testpb.Bank_Debit_FullMethodName, underContext},
	} {
		b.Run(c.name, func(b *testing.B) {
			f := call(b, c.intercept, c.method, c.h)
			b.ReportAllocs()
			for b.Loop() {
				f()
			}
		})
	}
}

func TestInterceptorStaysWithinItsAllocations(t *testing.T) {
	lock := grpclock.Protect(annotated(t, freestore.Locker(t)), nil).Unary()
	for _, c := range []struct {
		name   string
		h      grpc.UnaryHandler
		method string
		budget float64
	}{
		{"without a rule", plain, testpb.Bank_Get_FullMethodName, 0},
		{"plain", plain, testpb.Bank_Debit_FullMethodName, 16},
		// A child of the lease's context costs the standard library's machinery.
		{"with a context of its own", underContext, testpb.Bank_Debit_FullMethodName, 20},
	} {
		above := testing.AllocsPerRun(1000, call(t, lock, c.method, c.h)) - testing.AllocsPerRun(1000, call(t, nil, "", c.h))
		t.Logf("%s: %v allocations above the bare handler", c.name, above)
		if above > c.budget {
			t.Errorf("%s: %v allocations above the bare handler; budget %v", c.name, above, c.budget)
		}
	}
}
