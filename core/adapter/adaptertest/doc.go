// Package adaptertest is the test suite of adapters: one table of the meaning of a rule in every
// framework. The same key, the same waiting, the same refusals. An adapter of your own is held by
// it as the adapters of this module are:
//
//	func TestTheAdapter(t *testing.T) {
//		adaptertest.Run(t, adaptertest.Framework{Label: "mine", Start: start, HTTP: true, ...})
//	}
//
// A day's work is an adapter in four steps; examples/adapter is one, complete:
//
//  1. A core.Request on the framework's request: six getters.
//  2. One call of Guard.Do of package core in a middleware of the framework. The function that it runs calls
//     adapter.BeginAnswer before the answer leaves.
//  3. The refusal as an answer: core.Refusal.HTTP has status, header and body, and
//     reason.Reason.GRPC the code for other protocols.
//  4. A test with [Run]. Its Start serves a [Service]: a middleware that calls [Service.Front],
//     the layers of the service in their order, and a handler that calls [Service.HandleHTTP], or
//     [Service.Handle] where handlers have no http.ResponseWriter. A framework on HTTP ends with
//     [Service.ServeHTTP]; any other protocol implements [Client].
//
// A row that the framework cannot hold, however the adapter is written, is declared in
// [Framework.Cannot]. A row that hangs fails after 20 s: nothing takes as long that works.
//
// Idempotent endpoints are one call of Engine.Do of package idempotency. Package endpointtest has
// their rows, for the same [Framework].
//
// A router on net/http that calls http.Handlers needs no adapter: httplock serves it, with
// httplock.ParamFunc where it has its own path parameters.
package adaptertest
