//go:build !unix

package rediswire

import "syscall"

// read never polls here.
func (p *polling) read(syscall.RawConn, []byte) int { return 0 }

func (p *polling) tryUntil(uintptr) bool { return true }

// silent is not known here, as it is not to go-redis.
func (c *conn) silent() bool { return true }
