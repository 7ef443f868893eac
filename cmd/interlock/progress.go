package main

import (
	"fmt"
	"io"
	"time"
)

// progress says on a terminal how many locks have been read, once in a second.
type progress struct {
	w    io.Writer
	next time.Time // zero: there is no terminal
	said bool
}

func newProgress(w io.Writer) *progress {
	p := &progress{w: w}
	if terminal(w) {
		p.next = time.Now().Add(time.Second)
	}
	return p
}

func (p *progress) read(n int) {
	if !p.next.IsZero() && time.Now().After(p.next) {
		p.next, p.said = time.Now().Add(time.Second), true
		_, _ = fmt.Fprintf(p.w, "\r%d locks so far", n)
	}
}

// end takes the line back.
func (p *progress) end() {
	if p.said {
		_, _ = fmt.Fprint(p.w, "\r\x1b[K")
	}
}
