//go:build unix && !linux

package run

import "syscall"

// dieWithParent does nothing outside Linux: a command whose wrapper was killed lives
// on there.
func dieWithParent(*syscall.SysProcAttr) {}
