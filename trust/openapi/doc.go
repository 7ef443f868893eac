// Package openapi compares docs/openapi.yaml with the answers of locks and idempotent
// endpoints: its test has a service produce each refusal and replay, in each form, and
// validates status, header fields and body. Each answer of the document has to be produced.
package openapi
