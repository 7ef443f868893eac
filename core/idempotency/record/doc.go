// Package record is the contract between idempotent endpoints and a [Store] of their
// records. The author of a store reads it, and runs package
// core/idempotency/record/recordtest as a test of the store. It imports the contract of
// locks (package core/driver), for the errors that both kinds of stores share, and the
// standard library.
//
// A record is the claim of an idempotency key, its lease, and the stored response in one.
// The engine of package core/idempotency claims a record before it runs a handler,
// extends the claim while the handler runs, and commits the response.
package record
