//go:build !unix

package rediswire

import "syscall"

// read never polls here.
func (p *polling) read(syscall.RawConn, []byte) int { return 0 }

func (p *polling) tryUntil(uintptr) bool { return true }
