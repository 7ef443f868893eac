//go:build unix && !(linux || darwin || freebsd || netbsd || dragonfly)

package run

import "os"

// inForeground is false here: a command that reads from the terminal is stopped by
// the kernel.
func inForeground(*os.File) bool { return false }

func takeForeground(*os.File) {}
