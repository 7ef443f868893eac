//go:build !long

package timers

// seeds is how many runs draw lots. With the tag long there are ten times as many.
const seeds = 4
