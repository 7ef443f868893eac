package main

import (
	"runtime"
	"syscall"
	"time"
)

// occupy is the work in a section: a sleep. Go rounds one up to a millisecond
// where the process has nothing else to do, and not where it has, so a library
// that keeps its process busy would have shorter sections. The system's own sleep
// is the same for all; it takes a thread, and so is for short sections only.
func occupy(d time.Duration) {
	if d >= time.Millisecond {
		time.Sleep(d)
	} else if d > 0 {
		ts := syscall.NsecToTimespec(int64(d))
		_ = syscall.Nanosleep(&ts, nil) // a signal that ends it early does no harm
	}
}

// punctual has the sleeps of the calling goroutine end when they are over. Otherwise the system
// ends a sleep up to 50 µs later, together with others.
func punctual() {
	runtime.LockOSThread()
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_TIMERSLACK, 1, 0) // without it they are late
}
