//go:build linux || darwin || freebsd || netbsd || dragonfly

package main

import (
	"io"
	"os"
	"syscall"
	"unsafe"
)

// sizeOf returns the size of a terminal; the usual one if it does not tell.
func sizeOf(w io.Writer) screen {
	f, ok := w.(*os.File)
	if !ok {
		return usual
	}
	var size struct{ rows, columns, width, height uint16 }
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&size)))
	if errno != 0 || size.rows == 0 || size.columns == 0 {
		return usual
	}
	return screen{int(size.rows), int(size.columns)}
}
