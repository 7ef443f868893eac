package grpcx

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/interlock-go/interlock/core"
)

// WithHeld returns the context of a call with what its metadata says about the locks of its
// callers. A client in a handler finds it there too, if no interceptor of this module is in front.
func WithHeld(ctx context.Context) context.Context {
	return core.WithHeld(ctx, metadata.ValueFromIncomingContext(ctx, core.HeldHeader)...)
}

// Passing is a stream without a rule. Its handler may call on.
type Passing struct {
	grpc.ServerStream
	Ctx context.Context
}

// Context returns Ctx.
func (s Passing) Context() context.Context { return s.Ctx }
