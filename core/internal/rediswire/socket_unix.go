//go:build unix

package rediswire

import (
	"errors"
	"syscall"
	"time"
)

// read polls for what the server sends. It returns 0 if nothing has come in time, or if
// the connection has ended.
func (p *polling) read(raw syscall.RawConn, b []byte) int {
	p.into, p.size, p.end = b, 0, time.Now().Add(pollLimit)
	_ = raw.Read(p.try) // the ordinary read finds its error again
	p.into = nil
	return p.size
}

// tryUntil is the function of a syscall.RawConn that reads without waiting.
func (p *polling) tryUntil(fd uintptr) (done bool) {
	for {
		n, err := syscall.Read(int(fd), p.into)
		switch {
		case n > 0:
			p.size = n
			return true
		case n == 0, !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EINTR), time.Now().After(p.end):
			return true
		}
	}
}

// silent reports whether the server has said nothing since its last reply, not even that
// it has closed the connection. Of TLS nothing can be read without a wait.
func (c *conn) silent() bool {
	if c.raw == nil {
		return true
	}
	_ = c.SetReadDeadline(time.Time{}) // that of the last reply is over; if it fails, so does the read
	silent := false
	err := c.raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK)
		silent = errors.Is(err, syscall.EAGAIN)
		return true
	})
	return silent && err == nil
}
