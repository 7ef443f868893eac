//go:build linux || darwin || freebsd || netbsd || dragonfly

package run

import (
	"os"
	"syscall"
	"unsafe"
)

// inForeground reports whether a file is a terminal, and this process is in the
// foreground group of it.
func inForeground(f *os.File) bool {
	var group int32
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TIOCGPGRP, uintptr(unsafe.Pointer(&group)))
	return errno == 0 && int(group) == syscall.Getpgrp()
}

// takeForeground puts this process group into the foreground of a terminal (see
// ownTerminal).
func takeForeground(f *os.File) {
	group := int32(syscall.Getpgrp())
	// If it fails, the terminal has gone.
	_, _, _ = syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TIOCSPGRP, uintptr(unsafe.Pointer(&group)))
}
