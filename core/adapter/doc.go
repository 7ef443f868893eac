// Package adapter is for authors of adapters. An adapter is a package that connects guards
// to a framework, such as httplock or grpclock. Users of locks and guards need only
// package core.
//
// An adapter is a [Request] and one call of Guard.Do of package core. The function
// that it gives to Do runs the handler. It calls [BeginAnswer] before any part of an
// answer leaves, and returns whether an answer has left. If Do returns a refusal,
// the adapter answers with it: Refusal.HTTP has the response of HTTP, and its Reason the code of gRPC.
//
//	refusal := guard.Do(r.Context(), request{r}, func(ctx context.Context) (answered bool) {
//		tracked := &writer{ResponseWriter: w, ctx: ctx}
//		next.ServeHTTP(tracked, r.WithContext(ctx))
//		return tracked.answered
//	})
//	if refusal != nil {
//		status, body := refusal.HTTP(w.Header().Set)
//		...
//	}
//
// Idempotent endpoints are one call of Engine.Do of package idempotency in the same
// way.
//
// Packages adaptertest and endpointtest hold an adapter to what the adapters of this module do;
// examples/adapter is an adapter that uses public packages only, and passes them.
//
// A consumer of messages or jobs has no routes. [Message] is the Request for it.
package adapter
