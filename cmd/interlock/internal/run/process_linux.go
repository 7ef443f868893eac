package run

import "syscall"

// dieWithParent has the kernel kill the command when this process dies of whatever
// cause. It does not reach what the command has started.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
