// Package endpoint is what the author of an adapter reads: of a package that makes the
// endpoints of a framework idempotent, such as httplock, or that gives requests of
// another kind to an engine, such as package once. Users of idempotent endpoints need
// only package idempotency.
//
// An adapter is a [Call], a [Handler] and one call of Engine.Do of package idempotency.
// The Call says what the engine asks of a request. The Handler runs what is behind the
// endpoint and captures its answer. The [Verdict] says what the client gets.
package endpoint
