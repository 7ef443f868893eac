package pgxstore

import (
	"log/slog"
	"sync"
)

// mostLines is the number of lines that wait for the handler of a log. Further lines are dropped.
const mostLines = 16

// lines writes lines to a log on a separate goroutine, in their order: the handler may block, as at a
// pipe that no process reads, and notifications have to be received meanwhile. The goroutine ends when no line is left.
type lines struct {
	to *slog.Logger

	mu      sync.Mutex
	waiting []func()
	writing bool
}

func (l *lines) warn(text string, args ...any) { l.put(func() { l.to.Warn(text, args...) }) }
func (l *lines) info(text string, args ...any) { l.put(func() { l.to.Info(text, args...) }) }

func (l *lines) put(line func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == mostLines {
		return
	}
	if l.waiting = append(l.waiting, line); !l.writing {
		l.writing = true
		go l.write()
	}
}

func (l *lines) write() {
	for {
		l.mu.Lock()
		if len(l.waiting) == 0 {
			l.writing = false
			l.mu.Unlock()
			return
		}
		line := l.waiting[0]
		l.waiting = l.waiting[1:]
		l.mu.Unlock()
		line()
	}
}
