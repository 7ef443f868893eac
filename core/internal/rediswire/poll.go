package rediswire

import (
	"runtime"
	"time"
)

const (
	// pollLimit is for how long a caller polls for its reply before it sleeps: about as
	// long as it takes to go to sleep and to be woken on a machine that has nothing else
	// to do. So polling costs at most as much as it can save (A. Karlin et al., "Empirical
	// Studies of Competitive Spinning for a Shared-Memory Multiprocessor", SOSP 1991).
	pollLimit = 50 * time.Microsecond
	// After every pollTerm requests, pollTrial of them are polled for, and as many are
	// not, to see what is faster now.
	pollTerm, pollTrial = 512, 16
	// maxSample bounds what one slow request means in such a comparison.
	maxSample = time.Millisecond
)

// polling decides how a caller waits for a reply that it reads itself, while no other
// request is under way: whether it polls for a while before it sleeps. Where cores are
// idle, a reply from the same machine is there in less time than a core takes to go to
// sleep and to wake up. Where they are busy, a caller that polls takes the core that the
// server or another goroutine needs. Which of the two it is, nothing tells but the time
// that requests take. The goroutine that has the pipeline uses it.
type polling struct {
	on    bool // for the present request
	never bool // there is one processor only
	best  bool // it was faster in the last comparison

	n    int           // requests since that began
	with time.Duration // that those of the comparison took, with polling
	sans time.Duration // and without it

	into []byte
	size int // of what was read
	end  time.Time
	try  func(fd uintptr) bool // reads, until end
}

func (p *polling) init() {
	p.never = runtime.GOMAXPROCS(0) < 2
	p.try = p.tryUntil
}

// begin decides for the next request.
func (p *polling) begin() {
	switch {
	case p.never:
	case p.n < 2*pollTrial:
		p.on = p.n%2 == 0 // in turns, so that both see the same
	default:
		p.on = p.best
	}
}

// over is told how long the request took; zero: it failed.
func (p *polling) over(took time.Duration) {
	if p.never {
		return
	}
	if took == 0 {
		took = maxSample
	}
	took = min(took, maxSample)
	switch {
	case p.n >= 2*pollTrial:
	case p.on:
		p.with += took
	default:
		p.sans += took
	}
	p.on = false
	switch p.n++; p.n {
	case 2 * pollTrial:
		p.best = p.with < p.sans-p.sans/8 // else it is not worth a core
	case pollTerm:
		p.n, p.with, p.sans = 0, 0, 0
	}
}
