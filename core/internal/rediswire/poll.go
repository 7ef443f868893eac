package rediswire

import (
	"runtime"
	"slices"
	"time"
)

const (
	// pollLimit is for how long a caller polls for its reply before it sleeps: about as
	// long as it takes to go to sleep and to be woken on a machine that has nothing else
	// to do. So polling costs at most as much as it can save (A. Karlin et al., "Empirical
	// Studies of Competitive Spinning for a Shared-Memory Multiprocessor", SOSP 1991).
	pollLimit = 50 * time.Microsecond
	// Of every pollTerm requests pollTrial are polled for, and as many are not, to see what
	// is faster now. As long as polling is not, which costs a trial some 50 µs for each of
	// its requests, the next trial comes twice as late, up to maxPollTerm.
	pollTerm, maxPollTerm, pollTrial = 512, 8192, 8
	// pollStretch is for how long requests are polled for, one after the other, until one
	// is not. A caller that polls keeps its core: others of its process whose time has
	// come, and its process where others have work, would wait for the next preemption,
	// which is 10 ms away.
	pollStretch = 500 * time.Microsecond
	// pollPause is the pause of a connection after which the next reply is not polled for.
	// What has slept, on both sides, is woken first: the reply takes longer than one polls,
	// and the core is better left to those who have to wake up.
	pollPause = 10 * time.Millisecond
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

	stretch time.Duration // of what was polled for since the last request that was not

	n      int                      // requests since that began
	term   int                      // after so many it begins anew
	polled [pollTrial]time.Duration // what those of the comparison took, with polling
	slept  [pollTrial]time.Duration // and without it

	into []byte
	size int // of what was read
	end  time.Time
	try  func(fd uintptr) bool // reads, until end
}

func (p *polling) init() {
	p.never = runtime.GOMAXPROCS(0) < 2
	p.term = pollTerm
	p.try = p.tryUntil
}

// begin decides for the next request.
func (p *polling) begin() {
	switch {
	case p.never:
	case p.n < 2*pollTrial:
		// By twos in turns, so that both see the same: an acquire and a release, unless
		// one of them comes after a pause and does not count.
		p.on = p.n/2%2 == 0
	default:
		p.on = p.best && p.stretch < pollStretch
	}
}

// over is told how long the request took; zero: it failed.
func (p *polling) over(took time.Duration) {
	if p.never {
		return
	}
	if took == 0 {
		took = time.Hour
	}
	switch {
	case p.n >= 2*pollTrial:
	case p.on:
		p.polled[p.sample()] = took
	default:
		p.slept[p.sample()] = took
	}
	if p.stretch += took; !p.on {
		p.stretch = 0
	}
	p.on = false
	switch p.n++; p.n {
	case 2 * pollTrial:
		polled, slept := median(p.polled[:]), median(p.slept[:])
		if p.best = polled < slept-slept/4; p.best { // else it is not worth a core
			p.term = pollTerm
		} else {
			p.term = min(2*p.term, maxPollTerm)
		}
	case p.term:
		p.n = 0
	}
}

// sample is the place of a request of the comparison among those of its kind.
func (p *polling) sample() int { return p.n/4*2 + p.n%2 }

// median returns the median of what requests took, among which a few can have been very
// slow. It sorts them.
func median(took []time.Duration) time.Duration {
	slices.Sort(took)
	return took[len(took)/2]
}
