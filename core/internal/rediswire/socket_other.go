//go:build !unix

package rediswire

import "syscall"

// quiet reports false, so that go-redis looks at the connection.
func quiet(syscall.RawConn) bool { return false }

// read never polls here.
func (p *polling) read(syscall.RawConn, []byte) int { return 0 }

func (p *polling) tryUntil(uintptr) bool { return true }
