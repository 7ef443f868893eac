//go:build !long

package casstore_test

// seeds is the number of random runs. With the tag long there are fifty times as many.
const seeds = 40
