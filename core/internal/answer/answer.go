// Package answer is the way from the context of a handler to its guard, which must
// know when the handler answers.
package answer

// Gate is asked before an answer leaves.
type Gate interface {
	// Begin notes that the handler begins an answer that cannot be taken back, and
	// reports whether the answer may leave. success says whether it is one of
	// success.
	Begin(success bool) bool
}

// Key is the key of the innermost [Gate] in the context of a handler.
type Key struct{}
