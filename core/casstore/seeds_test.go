//go:build !long

package casstore_test

// seeds is how many runs draw lots. With the tag long there are fifty times as many.
const seeds = 40
