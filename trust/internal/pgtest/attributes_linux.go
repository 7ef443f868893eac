package pgtest

import "syscall"

// attributes has the kernel stop the server when the test binary dies of whatever
// cause. SIGQUIT aborts it without leaving its shared memory behind, as SIGKILL
// would.
func attributes(who *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: who, Pdeathsig: syscall.SIGQUIT}
}
