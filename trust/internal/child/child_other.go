//go:build unix && !linux

package child

import "syscall"

// dieWithParent does nothing: outside of Linux a process has to be ended by hand if its test
// binary was killed.
func dieWithParent(*syscall.SysProcAttr, syscall.Signal) {}
