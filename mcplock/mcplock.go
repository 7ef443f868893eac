package mcplock

import (
	"context"
	"errors"
	"maps"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
)

// Rules maps the name of a tool to the rule of its calls. A tool that is not in the
// map runs without a lock. [Protect] finds names that the server does not have.
type Rules map[string]*core.Guard

// Tools maps the name of a tool to the engine that makes its calls idempotent. A tool
// that is not in the map runs as it is. Options that differ between tools go to
// [idempotency.Engine.With]:
//
//	mcplock.Tools{"pay": engine.With(idempotency.Under(debit))}
type Tools map[string]*idempotency.Engine

// Protect adds receiving middleware to a server. It runs the calls of the tools in rules
// under their locks, and a tool in tools once for each idempotency key: a client that
// repeats the call gets the stored result of the first call (see the package comment). Each
// of the two may be nil. Other tools and other methods pass. Protect copies both maps: later
// changes have no effect. A nil option has no effect.
//
// Add all tools first. Protect compares the rules with them, and returns [core.ErrConfig]
// for a rule or an engine that is nil, for a name that no tool of the server has, and for a
// placeholder {arg.name} that the input schema of its tool does not have, or has as an object
// or a list. Of a schema that says more than properties (a reference, allOf), it checks nothing.
// After an error the server must not serve.
//
// The SDK lists tools to a client only. Protect is such a client, over memory: middleware
// that the server has already sees its requests initialize and tools/list, without a user.
// Add authentication after Protect, so that it stands in front.
func Protect(ctx context.Context, server *mcp.Server, rules Rules, tools Tools, opts ...Option) error {
	if err := errors.Join(noneNil(rules), noneNil(tools)); err != nil {
		return err
	}
	behind := maps.Clone(rules)
	maps.DeleteFunc(behind, func(name string, rule *core.Guard) bool {
		return tools[name] != nil && tools[name].Guard() == rule // the engine takes it
	})
	server.AddReceivingMiddleware(idempotent(tools, opts...), serialize(behind))
	return validate(ctx, server, rules, tools)
}

// serialize returns the middleware that runs tools under their locks.
func serialize(rules Rules) mcp.Middleware {
	return middleware(rules, func(rule *core.Guard, c *call, ctx context.Context, next handler) (result mcp.Result, err error) {
		refusal := rule.Do(ctx, c, func(ctx context.Context) bool {
			result, err = next(ctx)
			return answers(ctx, result, err)
		})
		if refusal != nil {
			return c.refused(refusal, rule), nil
		}
		return result, err
	})
}

// idempotent returns the middleware that runs a tool once for each key.
func idempotent(tools Tools, opts ...Option) mcp.Middleware {
	tools = maps.Clone(tools)
	for name, engine := range tools {
		tools[name] = engine.With(idempotency.EqualJSON()) // a model that repeats a call writes it anew
	}
	return middleware(tools, func(engine *idempotency.Engine, c *call, ctx context.Context, next handler) (result mcp.Result, err error) {
		verdict := engine.Do(ctx, c, endpoint.Handler{
			Run: func(ctx context.Context, attempt endpoint.Attempt) (endpoint.Response, bool) {
				result, err = first(next(ctx))
				response := capture(attempt, result, err)
				return response, response.Status != endpoint.FuncFailed
			},
			Pass: func(ctx context.Context) bool {
				result, err = next(ctx)
				return answers(ctx, result, err)
			},
		})
		switch {
		case verdict.Refusal != nil:
			return c.refused(verdict.Refusal, engine.Guard()), nil
		case verdict.Replay != nil:
			return replay(verdict.Replay)
		}
		return result, err
	}, opts...)
}

// handler runs the next handler.
type handler func(ctx context.Context) (mcp.Result, error)

// middleware calls do for the calls of tools that are in named.
func middleware[T any](
	named map[string]*T, do func(of *T, c *call, ctx context.Context, next handler) (mcp.Result, error), opts ...Option,
) mcp.Middleware {
	named = maps.Clone(named)
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			tool, _ := req.(*mcp.CallToolRequest)
			if tool != nil && tool.Extra != nil { // its handler may call on
				ctx = core.WithHeld(ctx, tool.Extra.Header.Values(core.HeldHeader)...)
			}
			if tool == nil || named[tool.Params.Name] == nil {
				return next(ctx, method, req)
			}
			return do(named[tool.Params.Name], newCall(ctx, tool, opts), ctx, func(ctx context.Context) (mcp.Result, error) {
				return next(ctx, method, req)
			})
		}
	}
}

// answers reports whether an answer is the tool's last word, and may leave.
func answers(ctx context.Context, result mcp.Result, err error) bool {
	return statusOf(result, err) != endpoint.FuncFailed && adapter.BeginAnswer(ctx, true)
}

// Option configures [Protect].
type Option func(*call)

// KeyMeta names the idempotency key in the _meta of a call, for clients with another name for
// it: com.example/request-id. Default: [MetaKey].
func KeyMeta(name string) Option { return func(c *call) { c.keyMeta = name } }

// KeyArgument names the argument that has the idempotency key. The name of a nested
// argument has dots: meta.idempotency-key. Default: idempotency_key.
func KeyArgument(name string) Option { return func(c *call) { c.keyArgument = name } }

// User is the [core.RequestFunc] that returns the authenticated user of a call:
// auth.TokenInfo.UserID, as the token verifier of the server has set it. It finds nothing
// in a call without a verified token, and if the verifier sets no UserID. The middleware
// then refuses the call.
//
//	idempotency.Scope(mcplock.User)
//	core.ContextFunc("user", mcplock.User)
func User(_ context.Context, req core.Request) (string, error) {
	tool, _ := req.Native().(*mcp.CallToolRequest)
	if tool == nil || tool.Extra == nil || tool.Extra.TokenInfo == nil {
		return "", nil
	}
	return tool.Extra.TokenInfo.UserID, nil
}

// Session is the [core.RequestFunc] that returns the ID of the session of a call. It finds
// nothing in calls that have no session: over stdio, over memory, and in protocol version
// 2026-07-28. The middleware then refuses the call. A client that connects anew has a new
// session, which does not get the results of the old one. Prefer [User] where there is a
// user.
func Session(_ context.Context, req core.Request) (string, error) {
	tool, _ := req.Native().(*mcp.CallToolRequest)
	if tool == nil || tool.Session == nil {
		return "", nil
	}
	return tool.Session.ID(), nil
}
