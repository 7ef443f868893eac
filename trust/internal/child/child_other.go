//go:build unix && !linux

package child

import "syscall"

// dieWithParent does nothing: outside of Linux a process whose test binary was killed has
// to be ended by hand.
func dieWithParent(*syscall.SysProcAttr, syscall.Signal) {}
