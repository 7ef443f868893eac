package httpx

import (
	"context"
	"net/http"
)

// Context is the part of echo's context that both of its versions have.
type Context interface {
	Request() *http.Request
	SetRequest(r *http.Request)
	Get(name string) any
}

// Serve runs a handler under ctx.
func Serve[C Context](ctx context.Context, c C, next func(C) error) error {
	r := c.Request()
	c.SetRequest(r.WithContext(ctx))
	defer func() {
		// Take the form from the current request, not from the copy made above:
		// middleware in between may have replaced it, and the last one has the form.
		HandBack(r, c.Request())
		c.SetRequest(r)
	}()
	return next(c)
}

// Value returns the value that c.Set stored, else the value of the request's context.
func Value(c Context, r *http.Request, key any) any {
	if name, ok := key.(string); ok {
		if v := c.Get(name); v != nil {
			return v
		}
	}
	return r.Context().Value(key)
}
