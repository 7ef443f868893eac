//go:build !linux

package redistest

import "syscall"

// dieWithParent is nothing outside Linux: only cleanups end a server there, and a server has
// to be ended by hand if its test binary was killed.
func dieWithParent() *syscall.SysProcAttr { return nil }
