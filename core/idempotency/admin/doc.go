// Package admin is for operators of idempotent endpoints, and for authors of their
// tools. It has the types that the engine of package idempotency takes and returns for
// them: the outcome of a request that was unknown ([Resolution], for Engine.Resolve),
// and a request that a process has not settled yet ([Claim], from Engine.PendingClaims).
package admin
