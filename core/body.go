package core

// ReadBody reads the body of a request, of at most limit bytes, before the guard
// asks for the lock. Without it a handler reads the body under the lock. A client
// that sends slowly, or stops, then holds the lock for as long as the server
// permits. Give http.Server a ReadTimeout, and the guard a [MaxHold], in any case.
//
// A longer body is refused ([reason.BodyTooLarge]). So is a body that breaks off or
// comes too late ([reason.BodyIncomplete], [reason.BodyTimeout]). In gRPC the message
// of a unary call is there already; of a stream the first message is received. An
// idempotent endpoint (idempotency.Under) reads the body before the lock without
// this option. limit must not be negative. Default: the body is left to the
// handler.
func ReadBody(limit int64) GuardOption {
	return guardOption(func(c *config) {
		if limit < 0 {
			c.fail("ReadBody(%d): must not be negative", limit)
			return
		}
		c.guard.readBody, c.guard.bodyLimit = true, limit
	})
}
