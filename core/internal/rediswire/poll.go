package rediswire

import (
	"runtime"
	"slices"
	"time"
)

const (
	// pollLimit is for how long a caller polls for its reply before it sleeps: about as
	// long as it takes, on a slow machine that has nothing else to do, to go to sleep and to
	// be woken. So polling costs there little more than it can save (A. Karlin et al.,
	// "Empirical Studies of Competitive Spinning for a Shared-Memory Multiprocessor",
	// SOSP 1991). On a fast machine it can cost three times as much; the trials decide.
	pollLimit = 100 * time.Microsecond
	// The first pollTrial of every pollTerm requests show what is faster now. As long as
	// polling is not, which costs a trial up to pollLimit for each request that is polled
	// for, the next trial comes twice as late, up to maxPollTerm.
	pollTerm, maxPollTerm = 1024, 8192
	// In a trial pollRun requests in a row are not polled for, then as many are, and so on.
	// The first pollSettle of each row do not count: they find caches and cores as the row
	// before has left them, and that alone can make one way look faster.
	pollRun, pollSettle, pollRuns = 6, 2, 5
	pollTrial                     = 2 * pollRuns * pollRun
	pollSamples                   = pollRuns * (pollRun - pollSettle)
	// pollStretch is for how long requests are polled for, one after the other, until one
	// is not; the rows of a trial can take pollRun times pollLimit. A caller that polls keeps
	// its core: others of its process whose time has come, and its process where others have
	// work, would wait for the next preemption, which is 10 ms away.
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
	best  bool // it was faster in the last trial

	stretch time.Duration // of what was polled for since the last request that was not

	n      int                        // requests since the last trial began
	term   int                        // after so many the next one begins
	polled [pollSamples]time.Duration // what those that count in the trial took, with polling
	slept  [pollSamples]time.Duration // and without it

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
	case p.n < pollTrial:
		p.on = p.n/pollRun%2 == 1
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
	if i, ok := p.sample(); ok && p.on {
		p.polled[i] = took
	} else if ok {
		p.slept[i] = took
	}
	if p.stretch += took; !p.on {
		p.stretch = 0
	}
	p.on = false
	switch p.n++; p.n {
	case pollTrial:
		polled, slept := median(p.polled[:]), median(p.slept[:])
		// Less is not worth a core, and may be chance. Where a reply takes longer than one
		// polls, it is chance: polling has saved nothing. The time has the writing in it.
		if p.best = polled < slept-slept/8 && polled < 2*pollLimit; p.best {
			p.term = pollTerm
		} else {
			p.term = min(2*p.term, maxPollTerm)
		}
	case p.term:
		p.n = 0
	}
}

// sample is the place of a request of the trial among those of its kind that count. It
// reports false if the request does not.
func (p *polling) sample() (i int, counts bool) {
	run, i := p.n/(2*pollRun), p.n%pollRun-pollSettle
	return run*(pollRun-pollSettle) + i, p.n < pollTrial && i >= 0
}

// median returns the median of what requests took, among which a few can have been very
// slow. It sorts them.
func median(took []time.Duration) time.Duration {
	slices.Sort(took)
	return took[len(took)/2]
}
