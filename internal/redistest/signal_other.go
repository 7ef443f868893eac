//go:build !unix

package redistest

import "syscall"

// The package compiles everywhere so that its importers do, but a system
// without these signals has no redis-server either.
const (
	sigTerminate = syscall.SIGTERM
	sigPause     = syscall.SIGTERM
	sigResume    = syscall.SIGTERM
)
