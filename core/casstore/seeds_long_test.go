//go:build long

package casstore_test

const seeds = 2000
