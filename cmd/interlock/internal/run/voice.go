package run

import (
	"log/slog"
	"strings"
	"sync"
	"time"
)

const (
	// queued is how many lines a [Voice] keeps that are not said yet. More are dropped.
	queued = 64
	// lastWords bounds how long the wrapper waits at its end for what is not said yet.
	lastWords = time.Second
)

// Voice says what the wrapper has to say, line by line and on a goroutine of its own: a
// terminal that is stopped, or a pipe that is full, keeps nothing else waiting. It says
// nothing before the command has begun, since until then a write to the terminal could
// stop this process (see ownSignals).
type Voice struct {
	tell  func(line string)
	lines chan string
	begin sync.Once
	last  chan struct{} // closed by finish
	ended chan struct{}
}

// NewVoice makes a [Voice]. It calls tell for each line, which has no line end.
func NewVoice(tell func(line string)) *Voice {
	return &Voice{tell: tell, lines: make(chan string, queued), last: make(chan struct{}), ended: make(chan struct{})}
}

// say has a line said, and does not wait.
func (v *Voice) say(line string) {
	select {
	case v.lines <- line:
	default: // no line has been said for long
	}
}

// Write makes the voice a writer of log lines. It does not wait.
func (v *Voice) Write(p []byte) (int, error) {
	v.say(strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}

// Logger returns a logger for what runs beside the command.
func (v *Voice) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(v, nil)) }

// speak begins to say the lines.
func (v *Voice) speak() {
	v.begin.Do(func() {
		go func() {
			defer close(v.ended)
			for {
				select {
				case line := <-v.lines:
					v.tell(line)
				case <-v.last:
					// Both may have been ready: what was queued before finish is said.
					for len(v.lines) > 0 {
						v.tell(<-v.lines)
					}
					return
				}
			}
		}()
	})
}

// finish says what is left, and waits for it no longer than lastWords. What comes later,
// from a goroutine of the store, is dropped. Call it once.
func (v *Voice) finish() {
	v.speak()
	close(v.last)
	select {
	case <-v.ended:
	case <-time.After(lastWords):
	}
}
