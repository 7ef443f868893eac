//go:build unix && !linux

package run

import "syscall"

// dieWithParent does nothing outside Linux: a command whose wrapper was killed lives
// on there.
func dieWithParent(*syscall.SysProcAttr) {}

// processes has no use outside Linux: a process whose parent ends goes to process 1, where
// it is not found again.
type processes struct{}

func becomeReaper() processes { return processes{} }

func (c *child) signalOthers(syscall.Signal) {}

func (c *child) killOthers() {}

// survivors does not look for what has left the group.
func (c *child) survivors() []int { return nil }

func (c *child) look() (news string) { return "" }
