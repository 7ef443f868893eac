//go:build long

package idempotency_test

const seeds = 300
