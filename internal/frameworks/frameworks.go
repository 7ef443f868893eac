// Package frameworks has a framework of each protocol with its adapter, so that one table of
// cases runs over each of them: in the tests of this module, and in tests of nested modules,
// which have other dependencies. Package all has the other frameworks, which such a module
// need not compile. It is for tests.
package frameworks

import (
	"context"
	"net/http"
	"slices"
	"testing"

	"google.golang.org/grpc"

	"github.com/interlock-go/interlock/core/adapter/adaptertest"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/internal/frameworks/callspb"
)

// The frameworks that each module with tests of them has. Package all has the others, too.
var (
	HTTP       = adaptertest.Framework{Label: "net/http", Start: startHTTP, HTTP: true, Parts: true, Idempotent: true, Native: "*http.Request"}
	GRPC       = adaptertest.Framework{Label: "gRPC", Start: startUnary, Idempotent: true}
	GRPCStream = adaptertest.Framework{Label: "gRPC stream", Start: startStream, Parts: true}
)

// Protocols are a framework of each protocol, for behaviour that differs by protocol only.
var Protocols = []adaptertest.Framework{HTTP, GRPC}

func startHTTP(t testing.TB, s *adaptertest.Service) adaptertest.Client {
	h := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.HandleHTTP(w, r, r.PathValue) != nil {
			http.Error(w, "refused by the handler", http.StatusConflict)
		}
	}))
	for _, layer := range slices.Backward(s.Layers) {
		if layer.Idempotent != nil {
			h = httplock.Idempotent(layer.Idempotent)(h)
		} else {
			h = httplock.Guard(layer.Lock)(h)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc(s.Pattern("{", "}"), func(w http.ResponseWriter, r *http.Request) {
		s.Front(r.Context(), func(ctx context.Context) *http.Request {
			r = adaptertest.InContext(ctx, r)
			h.ServeHTTP(w, r)
			return r
		})
	})
	return s.ServeHTTP(t, mux)
}

func startUnary(t testing.TB, s *adaptertest.Service) adaptertest.Client {
	const method = callspb.Calls_Call_FullMethodName
	chain := []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (reply any, err error) {
		s.Front(ctx, func(ctx context.Context) *http.Request {
			reply, err = next(ctx, req)
			return nil
		})
		return reply, err
	}}
	for _, layer := range s.Layers {
		if layer.Idempotent != nil {
			chain = append(chain, grpclock.Protect(nil, grpclock.Methods{method: layer.Idempotent}).Unary())
		} else {
			chain = append(chain, grpclock.Protect(grpclock.Rules{method: layer.Lock}, nil).Unary())
		}
	}
	return serveGRPC(t, s, false, chain, nil)
}

func startStream(t testing.TB, s *adaptertest.Service) adaptertest.Client {
	chain := []grpc.StreamServerInterceptor{func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
		s.Front(ss.Context(), func(ctx context.Context) *http.Request {
			err = next(srv, serverStream{ss, ctx})
			return nil
		})
		return err
	}}
	for _, layer := range s.Layers {
		rules := grpclock.Rules{callspb.Calls_Watch_FullMethodName: layer.Lock}
		chain = append(chain, grpclock.Protect(rules, nil).Stream())
	}
	return serveGRPC(t, s, true, nil, chain)
}

// serverStream is a stream with another context.
type serverStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s serverStream) Context() context.Context { return s.ctx }
