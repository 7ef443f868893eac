package idempotency

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/reason"
)

var (
	errNobody = errors.New("interlock: the Scope function found no principal")
	// errUnscoped is errNobody for a function: its caller sees the error.
	errUnscoped = fmt.Errorf("%w: the function has no principal: Scoped gives it one that is not empty, "+
		"and an engine with Global needs none", core.ErrKey)
)

// scope finds out whose key it is, and in which space. Functions have one of their own.
func (e *Engine) scope(ctx context.Context, call Call) (string, error) {
	f, ok := call.(*function)
	if !ok {
		return e.principal(ctx, call)
	}
	principal := f.scope
	if !f.scoped {
		var err error
		if principal, err = e.principal(ctx, call); err != nil && !errors.Is(err, errNobody) {
			return "", err
		}
		if err == nil && principal == "" { // Global
			return FuncScope(""), nil
		}
	}
	if principal == "" {
		return "", errUnscoped
	}
	return FuncScope(principal), nil
}

// principal finds out whose key it is.
func (e *Engine) principal(ctx context.Context, call Call) (string, error) {
	if e.config.global {
		return "", nil
	}
	scope, err := e.config.scope(ctx, call)
	if err == nil && scope == "" {
		err = errNobody
	}
	return scope, err
}

// unscoped is why a request is refused whose principal was not found. What is
// most often a mistake of the server is logged, since the client is not told.
func (e *Engine) unscoped(ctx context.Context, err error) reason.Reason {
	switch {
	case errors.Is(err, errNobody):
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
