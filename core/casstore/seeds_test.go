//go:build !long

package casstore_test

// seeds is how many runs draw lots. With the tag long there are twenty times as many.
const seeds = 100
