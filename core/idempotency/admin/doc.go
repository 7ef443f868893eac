// Package admin is what operators of idempotent endpoints need beside the engine of
// package idempotency, and those who write tools for operators: what was found out about
// a request whose outcome is unknown ([Resolution], for Engine.Resolve), and what a
// process has not settled yet ([Claim], from Engine.PendingClaims).
package admin
