// Package echolock is middleware for echo v5 that runs the requests for one resource one
// after the other, in this process and in all other processes that use the same store.
//
//	locker, err := core.New(store)
//	debit := core.Serialize(locker, "account/{id}")
//	e.POST("/accounts/:id/debit", handler, echolock.Guard(debit))
//
// The package has the names and the options of package echolock for echo v4
// (github.com/interlock-go/interlock/echolock). The documentation of that package has the
// places of the middleware, their order, and the answers to clients. A service that moves
// from echo v4 to v5 changes the import path. One program can use both packages: they share
// no state, and a rule makes the same key in both. This page has the differences in v5. A
// whole service is examples/echo in the repository.
//
// # In the handler
//
// c.Request() carries the lease's context, which ends with cause [core.ErrLost] when the
// lock can no longer be trusted. The [echo.Context] itself is not a [context.Context]. echo
// uses it again for another request after the handler has returned: a goroutine that goes on
// needs copies of the values that it uses, and has no lock any more.
//
// echo renders an error that the handler returns after the lock is released. If the text of
// an error must be made under the lock, write the response in the handler.
//
// # Path parameters
//
// The key holds parameters in decoded form, as in all frameworks: /accounts/%41 and
// /accounts/A are one resource. c.Param returns the escaped form with the default router,
// and the decoded form if [echo.RouterConfig] says UnescapePathParamValues or
// UseEscapedPathForMatching. The middleware finds out the router's setting, and makes the
// same key under each. The value of a parameter that is escaped twice (%2541) is decoded
// once.
//
// # Refusals
//
// The middleware returns a refusal as a *[RefusalError]. echo's error handlers render it:
// [echo.DefaultHTTPErrorHandler] and [echo.ProblemDetailsHTTPErrorHandler] send problem
// details (RFC 9457) of type urn:interlock:problem:<reason> with fixed text. An error handler
// of the application finds the status by [echo.StatusCode], and the reason by [errors.As]
// with a *[RefusalError]. Render in [Config] replaces the error before an error handler
// receives it.
//
// # Idempotent endpoints
//
//	engine, err := idempotency.New(store, idempotency.Scope(core.FromContext("user")))
//	e.POST("/payments", handler, echolock.Idempotent(engine))
//
// The owner of the keys is here the value that authentication in front stored by
// c.Set("user", name). If the handler returns an error, echo's error handler renders it
// under the claim, so that the response that is sent is the response that is stored.
package echolock
