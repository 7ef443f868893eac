// Package endpoint is for authors of adapters. An adapter is a package that makes the
// endpoints of a framework idempotent, such as httplock, or that gives requests of
// another kind to an engine, such as package once. Users of idempotent endpoints need
// only package idempotency.
//
// An adapter is a [Call], a [Handler] and one call of Engine.Do of package idempotency.
// The Call answers the engine's questions about a request. The Handler runs the user's
// handler and captures its answer. The [Verdict] is the answer for the client.
package endpoint
