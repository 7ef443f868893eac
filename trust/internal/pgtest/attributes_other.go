//go:build unix && !linux

package pgtest

import "syscall"

// attributes says as whom a program runs. Outside Linux a server whose test binary
// was killed has to be ended by hand.
func attributes(who *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: who}
}
