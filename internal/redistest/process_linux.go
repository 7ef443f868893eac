package redistest

import "syscall"

// dieWithParent has the kernel kill the server when the test binary dies of
// whatever cause: a panic, a timeout, kill -9. Cleanups do not run then.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
