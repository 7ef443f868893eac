package redistest

import "syscall"

// dieWithParent has the kernel kill the server when the test binary dies, by
// a panic, a timeout or kill -9. Cleanups do not run then.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
