//go:build long

package lock

const seeds = 2000
