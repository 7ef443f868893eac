// Package idempotency makes endpoints idempotent: a request that is sent again
// with the same idempotency key gets the stored answer of the first, and is not
// carried out a second time.
package idempotency
