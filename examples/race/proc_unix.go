//go:build unix && !linux

package main

import "syscall"

// dieWithParent does nothing: here a child that is stopped outlives a parent that was killed.
func dieWithParent(*syscall.SysProcAttr) {}
