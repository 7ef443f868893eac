// Package paired marks the context of a release that leaves in one pipeline with another
// request, whose answer the caller waits for anyway. Such a release is not left to a goroutine
// of its own (core.AnswerFirst): it would leave alone, and the caller would save nothing.
package paired

import "context"

type key struct{}

// With returns a context with the mark.
func With(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, true) }

// Marked reports whether a context has the mark.
func Marked(ctx context.Context) bool { return ctx.Value(key{}) != nil }
