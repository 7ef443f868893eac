package main

import "sync"

// gauge counts what is under way at the same time.
type gauge struct {
	mu                    sync.Mutex
	now, most, all, above int
	limit                 int // above counts what begins beside as many others
}

// enter is called at the beginning, and leave at the end.
func (g *gauge) enter() (leave func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now++
	g.all++
	g.most = max(g.most, g.now)
	if g.limit > 0 && g.now > g.limit {
		g.above++
	}
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.now--
	}
}

// counts are what a gauge has counted since its reset.
type counts struct{ now, most, all, above int }

func (g *gauge) counts() counts {
	g.mu.Lock()
	defer g.mu.Unlock()
	return counts{g.now, g.most, g.all, g.above}
}

func (g *gauge) reset() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.most, g.all, g.above = g.now, 0, 0
}
