package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

const (
	// refresh is how often a terminal shows the time that is left, and remind how
	// often anything else does.
	refresh = time.Second
	remind  = 30 * time.Second
	// aroundCell is what a cell takes beside its window, until that is known.
	aroundCell = 200 * time.Millisecond
)

// progress says how far a run is and how long it will take: on a terminal in a last
// line that is written again and again, elsewhere in a line from time to time.
type progress struct {
	out      io.Writer
	terminal bool
	planned  []time.Duration // the warm-up and window of each cell
	stop     chan struct{}
	stopped  chan struct{}

	mu        sync.Mutex
	cell      int // that is under way
	began     time.Time
	finished  time.Duration // what the cells before it took
	finishing time.Duration // and what was planned for them
}

func startProgress(out io.Writer, cells []cell) *progress {
	return newProgress(out, cells, isTerminal(out))
}

func newProgress(out io.Writer, cells []cell, terminal bool) *progress {
	p := &progress{out: out, terminal: terminal, stop: make(chan struct{}), stopped: make(chan struct{})}
	for _, c := range cells {
		p.planned = append(p.planned, c.warmUp()+c.Window)
	}
	every := remind
	if p.terminal {
		every = refresh
	} else {
		p.say(p.status(time.Now()))
	}
	go func() {
		defer close(p.stopped)
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-p.stop:
				return
			case now := <-ticker.C:
				p.show(now)
			}
		}
	}()
	return p
}

// isTerminal reports whether lines can be written again.
func isTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// begin notes that the cell i begins, and that the cell before it has ended.
func (p *progress) begin(i int) {
	p.mu.Lock()
	now := time.Now()
	if i > 0 {
		p.finished += now.Sub(p.began)
		p.finishing += p.planned[i-1]
	}
	p.cell, p.began = i, now
	p.mu.Unlock()
	if p.terminal {
		p.show(now)
	}
}

// left is how long the rest will take, judged by what the cells so far took beyond
// their plan.
func (p *progress) left(now time.Time) time.Duration {
	around := aroundCell
	if p.cell > 0 {
		around = (p.finished - p.finishing) / time.Duration(p.cell)
	}
	var rest time.Duration
	for _, d := range p.planned[p.cell:] {
		rest += d + around
	}
	if !p.began.IsZero() {
		// A cell that takes longer than it should is about to end.
		rest -= min(now.Sub(p.began), p.planned[p.cell]+around)
	}
	return max(rest, 0)
}

// status says how far the run is.
func (p *progress) status(now time.Time) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.planned) == 0 {
		return "no cells"
	}
	return fmt.Sprintf("cell %d of %d, %s left", p.cell+1, len(p.planned), roughly(p.left(now)))
}

// roughly writes a duration as a person would say it.
func roughly(d time.Duration) string {
	if d < 100*time.Second {
		return fmt.Sprintf("%d s", int(d.Round(time.Second).Seconds()))
	}
	return fmt.Sprintf("%d min", int(d.Round(time.Minute).Minutes()))
}

// clearLine goes to the begin of a terminal's line and empties it.
const clearLine = "\r\x1b[K"

// show writes the status; on a terminal over the one before.
func (p *progress) show(now time.Time) {
	text := p.status(now) + "\n"
	if p.terminal {
		text = clearLine + p.status(now)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = io.WriteString(p.out, text)
}

// say writes a line that stays.
func (p *progress) say(line string) {
	text := line + "\n"
	if p.terminal {
		text = clearLine + text
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = io.WriteString(p.out, text)
}

// end takes the status away.
func (p *progress) end() {
	close(p.stop)
	<-p.stopped
	if p.terminal {
		_, _ = io.WriteString(p.out, clearLine)
	}
}
