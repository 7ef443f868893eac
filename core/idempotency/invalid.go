package idempotency

// ReleaseInvalid keeps no record of a request that the handler refuses as invalid:
// 400 and 422, in gRPC INVALID_ARGUMENT and OUT_OF_RANGE. The claim is released,
// and the next request with the key is carried out, also a request with a corrected
// body.
//
// Use it where clients may send any number of such requests: each record takes
// about 800 bytes with a short answer (measured on Redis 7.0), for the whole
// [Retention]. Give it only to endpoints that answer so before any effect. After
// [MarkEffect], and with [StoreAll], the answer is stored nevertheless. Default:
// off; such answers are stored and replayed.
func ReleaseInvalid() Option {
	return func(c *config) { c.releaseInvalid = true }
}
