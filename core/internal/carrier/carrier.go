// Package within finds what a context does not show of the request that it carries.
//
// gin gives its handlers a *gin.Context, which is a [context.Context]. By default it shows
// nothing of the context of its request: not the lease, not the attempt, not the end. A
// handler that passes it on has lost all three without a word.
package within

import (
	"context"
	"reflect"
)

// ginContext is gin.ContextKey: each context that derives from a *gin.Context returns that
// context for it.
const ginContext = "_gin-gonic/gin/contextkey"

// Value returns the value of a key in ctx, or else in the context of the request that ctx
// carries; nil if both have none.
func Value(ctx context.Context, key any) any {
	if v := ctx.Value(key); v != nil {
		return v
	}
	return Hidden(ctx, key)
}

// Hidden returns the value of a key in the context of the request that ctx carries; nil if
// there is none.
func Hidden(ctx context.Context, key any) any {
	carrier := ctx.Value(ginContext)
	if carrier == nil {
		return nil
	}
	// The package of gin is not imported for this. The request is a field.
	c := reflect.ValueOf(carrier)
	if c.Kind() != reflect.Pointer || c.IsNil() || c.Elem().Kind() != reflect.Struct {
		return nil
	}
	request := c.Elem().FieldByName("Request")
	if request.Kind() != reflect.Pointer || request.IsNil() || !request.CanInterface() {
		return nil
	}
	r, ok := request.Interface().(interface{ Context() context.Context })
	if !ok {
		return nil
	}
	return r.Context().Value(key)
}
