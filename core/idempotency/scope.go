package idempotency

import (
	"context"
	"errors"
	"log/slog"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/reason"
)

// scope finds out in which space of keys the call's is.
func (e *Engine) scope(ctx context.Context, call endpoint.Call) (string, error) {
	if s, ok := call.(endpoint.Scoper); ok {
		return s.Scope(func() (string, error) { return e.principal(ctx, call) })
	}
	return e.principal(ctx, call)
}

// principal finds out whose key it is.
func (e *Engine) principal(ctx context.Context, call endpoint.Call) (string, error) {
	if e.config.global {
		return "", nil
	}
	scope, err := e.config.scope(ctx, call)
	if err == nil && scope == "" {
		err = endpoint.ErrNoPrincipal
	}
	return scope, err
}

// unscoped is why a request is refused whose principal was not found. What is
// most often a mistake of the server is logged, since the client is not told.
func (e *Engine) unscoped(ctx context.Context, err error) reason.Reason {
	switch {
	case errors.Is(err, endpoint.ErrNoPrincipal):
		e.log(ctx, slog.LevelWarn, "interlock: idempotent requests are refused, since the Scope function finds no principal: "+
			"authentication goes in front, and core.Request.Value finds what gin and echo keep by c.Set", err)
		return reason.NoPrincipal
	case errors.Is(err, core.ErrKey):
		return reason.NoPrincipal
	case errors.Is(ctx.Err(), context.Canceled):
		return reason.Canceled
	case ctx.Err() != nil:
		return reason.NoRecord // no lock was waited for
	}
	e.log(ctx, slog.LevelError, "interlock: idempotent requests are refused, since the Scope function fails", err)
	return reason.Internal
}
