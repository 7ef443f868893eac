//go:build unix && !linux

package run

import "syscall"

// dieWithParent does nothing outside Linux: a command lives on there when its wrapper was
// killed.
func dieWithParent(*syscall.SysProcAttr) {}

// processes has no use outside Linux: when the parent of a process ends, the process goes to
// process 1 and is not found again.
type processes struct{}

func becomeReaper() processes { return processes{} }

func (c *child) signalOthers(syscall.Signal) {}

func (c *child) killOthers() {}

// survivors does not look for processes that have left the group.
func (c *child) survivors() []int { return nil }

func (c *child) look() (news string) { return "" }
