//go:build !linux

package main

import "time"

// occupy is the work in a section: a sleep.
func occupy(d time.Duration) {
	if d > 0 {
		time.Sleep(d)
	}
}

// punctual does nothing: only Linux ends a sleep late to end others with it.
func punctual() {}
