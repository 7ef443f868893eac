package core

import "errors"

// What is wrong with the body of a request, beside its length (ErrBodyLimit).
var (
	// ErrBody says that the body of a request did not come whole, or cannot be
	// read: the client broke off, or did not keep to the encoding that it had
	// announced.
	ErrBody = errors.New("interlock: body broken off or malformed")

	// ErrBodyTimeout says that the body did not come within the time that the
	// server gives it (http.Server.ReadTimeout, for one).
	ErrBodyTimeout = errors.New("interlock: body did not come in time")
)

// ReadBody reads the body of a request, of at most limit bytes, before the lock is
// asked for. Without it a handler reads the body under the lock, and a client that
// sends it slowly, or stops, holds the lock for as long as the server lets it:
// give http.Server a ReadTimeout, and the rule a MaxHold, in any case.
//
// A longer body is refused (ReasonBodyTooLarge), and so is one that breaks off or
// comes too late (ReasonBodyIncomplete, ReasonBodyTimeout). In gRPC the message of a
// unary call is there before; of a stream the first one is received. An idempotent
// endpoint (idempotency.Under) reads the body before the lock without this option.
// Default: the body is left to the handler. For a rule only.
func ReadBody(limit int64) Option {
	return func(c *config) {
		switch {
		case !c.ruleOnly("ReadBody"):
		case limit < 0:
			c.fail("ReadBody(%d): must not be negative", limit)
		default:
			c.guard.readBody, c.guard.bodyLimit = true, limit
		}
	}
}
