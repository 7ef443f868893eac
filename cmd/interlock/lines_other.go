//go:build !(linux || darwin || freebsd || netbsd || dragonfly)

package main

import "io"

// lines returns how many lines a terminal has, which is not known here.
func lines(io.Writer) int { return 0 }
