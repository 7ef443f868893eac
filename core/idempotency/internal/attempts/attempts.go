// Package attempts is the way from the context of a handler to the attempt that it
// belongs to. Package record needs it to enlist a transaction, and cannot import the
// engine.
package attempts

// Key is the key of the attempt in the context of a handler.
type Key struct{}
