//go:build long

package timers

const seeds = 40
