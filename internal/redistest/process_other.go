//go:build !linux

package redistest

import "syscall"

// dieWithParent is nothing outside Linux: only cleanups end a server there, and
// one whose test binary was killed has to be ended by hand.
func dieWithParent() *syscall.SysProcAttr { return nil }
