package main

import "syscall"

// dieWithParent has the kernel kill a child when the thread ends that has started it. A child
// that is stopped would outlive a parent that was killed otherwise.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
