// Package conformance runs the cases of idempotent endpoints, over all frameworks, with
// records in PostgreSQL: those that the root module runs with records in Redis.
package conformance
