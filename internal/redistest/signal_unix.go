//go:build unix

package redistest

import "syscall"

const (
	sigTerminate = syscall.SIGTERM
	sigPause     = syscall.SIGSTOP
	sigResume    = syscall.SIGCONT
)
