package grpcx

import (
	"context"

	"google.golang.org/grpc/metadata"

	"github.com/interlock-go/interlock/core"
)

// fencesKey is the key of a context with the value of [core.FencesHeader] that a call is sent with.
type fencesKey struct{}

// WithFences adds the fences of a call, "" for none, to its metadata. md is the metadata of the
// caller, and its own fences stay.
func WithFences(ctx context.Context, md metadata.MD, fences string) context.Context {
	if fences != "" && len(md.Get(core.FencesHeader)) == 0 {
		ctx = metadata.AppendToOutgoingContext(ctx, core.FencesHeader, fences)
	}
	return context.WithValue(ctx, fencesKey{}, fences)
}

// Fences returns the fences that WithFences got, and whether it was called: package connectlock
// keeps its metadata elsewhere.
func Fences(ctx context.Context) (fences string, asked bool) {
	fences, asked = ctx.Value(fencesKey{}).(string)
	return fences, asked
}
