//go:build !long

package idempotency_test

// How many simulations there are. With the tag long there are more.
const seeds = 10
