//go:build linux || darwin || freebsd || netbsd || dragonfly

package main

import (
	"io"
	"os"
	"syscall"
	"unsafe"
)

// lines returns how many lines a terminal has; 0 if that is not known.
func lines(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	var size struct{ rows, columns, width, height uint16 }
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&size))); errno != 0 {
		return 0
	}
	return int(size.rows)
}
