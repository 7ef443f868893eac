// Package mcplock has middleware for servers of the Model Context Protocol
// (github.com/modelcontextprotocol/go-sdk) that runs the tool calls for one resource one
// after the other, and each call with an idempotency key once, in all processes on the same
// store. Agents repeat a call when they did not get its answer: the repetition gets the
// stored result, and no second effect.
//
//	debit := core.Serialize(locker, "account/{arg.account_id}")
//	engine, err := idempotency.New(store, idempotency.Scope(mcplock.User))
//	server := mcp.NewServer(&mcp.Implementation{Name: "bank", Version: "v1.0.0"}, nil)
//	once, alone := mcplock.Tools{"pay": engine.With(idempotency.Under(debit))}, mcplock.Rules{"debit": debit}
//	err = mcplock.Protect(ctx, server, alone, once) // when the server has its tools
//
// A later AddReceivingMiddleware adds around the middleware of a server. Add authentication
// after [Protect], so that it stands in front. Names of tools are compared exactly: a
// tool without a rule runs without a lock. Protect finds rules for which the
// server has no tool or no argument. Other methods pass.
//
// # The lock
//
// {arg.account_id} is an argument, and {account_id} is the same: a rule with it also serves
// HTTP and gRPC, with the same keys. A nested argument has dots, {arg.account.id}.
// {header.X-Tenant} is a field of the HTTP request, and {ctx.user} a [core.ContextFunc],
// for example of [User].
//
// One resource is one key: 42, 42.0 and "42" are account/42 ([adapter.JSONParam]). An
// argument that is missing, null, empty, an object, a list, a fraction or a number of 2^53
// or more refuses the call. Defaults of the tool's schema come later, and make no key. If
// several strings are one resource, such as "042" and "42", write {arg.account_id:int}
// ([core.Form]).
//
// The tool runs under the lease. Its context ends with cause [core.ErrLost] when the lock
// can no longer be trusted, and when the client cancels the call. Over stateless HTTP the
// server finds that out only with StreamableHTTPOptions.PropagateRequestCancellation. A
// tool that asks the client (elicitation, sampling) holds its lock meanwhile: give the rule
// a [core.MaxHold].
//
// # Idempotent tools
//
// The key is idempotencyKey ([MetaKey]) in the _meta of the call, which a client sets, or
// the argument idempotency_key ([KeyArgument]), which a model fills in. It is the same in
// each repetition. Arguments are compared as values ([idempotency.EqualJSON]).
//
// The key belongs to a principal ([idempotency.Scope]): [User], who is the same after a
// crash of the client, or [Session]. A server over stdio has one client, and can have
// [idempotency.Global] on its own store.
//
// The answers to a repetition:
//
//	a result                          the result, with "io.github.interlock-go/replayed": true in its _meta
//	a result that the tool has built  likewise: it is an answer, such as "the account is closed"
//	with IsError
//	an error of Go                    the tool runs again; after idempotency.MarkEffect it gets the error
//	a protocol error, a panic         likewise
//	input requests                    the tool runs again, with the responses of the client
//	a refusal of another server       the tool runs again
//
// [idempotency.StoreIf] can leave results with IsError out: their status is
// [endpoint.FuncFinal].
//
// The SDK makes a result of an error that a tool of mcp.AddTool returns. The middleware
// knows the difference. A tool that moves money calls [idempotency.MarkEffect] just before
// it does so: also an output that does not fit the tool's schema is a protocol error, which
// comes after the effect. A marked or [idempotency.Strict] tool cannot ask by input
// requests, since the question would be stored.
//
// The tool runs on when the client cancels the call or goes away: its result waits for the
// repetition.
//
// # What a model sees
//
// A refusal is a result with IsError. Its text says whether the call was carried out, and
// gives advice: the text and the advice of the reason ([reason.Reason.Advice]), and how long
// to wait. Its _meta has "io.github.interlock-go/refusal" ([MetaRefusal]) for programs: the
// reason, and when the same call may be sent again. Refusals are not stored.
//
// For [idempotency.Engine.Resolve] the protocol is [endpoint.Func]. The body of a response is
// {"result": ...} or {"error": ...} as in JSON-RPC, or empty for a call that was carried out
// with an unknown result.
package mcplock
