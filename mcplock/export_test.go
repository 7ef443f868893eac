package mcplock

// The two middlewares of [Protect], for tests that put others between them.
var (
	Serialize  = serialize
	Idempotent = idempotent
)
