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
	// lastWords bounds how long the wrapper waits at its end for unwritten messages.
	lastWords = time.Second
	// stuckAfter bounds a write to a terminal that is not stopped.
	stuckAfter = 100 * time.Millisecond
)

// Voice writes the messages of the wrapper, line by line and on its own goroutine: a terminal
// that is stopped, or a pipe that is full, keeps nothing else waiting.
//
// Until the command has begun, a write to a terminal from the background could stop this
// process (see ownTerminal). So a line is said then only if that cannot happen, and no line
// is said while the command is started: from hush to speak.
type Voice struct {
	tell  func(line string)
	lines chan string
	turn  chan struct{} // has an element while a line is written, and from hush to speak
	begun chan struct{} // closed by speak
	begin sync.Once
	last  chan struct{} // closed by finish
	ended chan struct{}
}

// NewVoice makes a [Voice]. It calls tell for each line, which has no line end.
func NewVoice(tell func(line string)) *Voice {
	return &Voice{
		tell: tell, lines: make(chan string, queued), turn: make(chan struct{}, 1), begun: make(chan struct{}),
		last: make(chan struct{}), ended: make(chan struct{}),
	}
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

// Logger returns a logger for work in parallel with the command.
func (v *Voice) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(v, nil)) }

// listen says the lines until finish. safe reports whether a write can stop this process;
// it is not asked any more when the command has begun. Call it once, on its own goroutine.
func (v *Voice) listen(safe func() bool) {
	defer close(v.ended)
	for {
		select {
		case line := <-v.lines:
			v.write(line, safe)
		case <-v.last:
			// Both may have been ready: messages queued before finish are written.
			for len(v.lines) > 0 {
				v.tell(<-v.lines)
			}
			return
		}
	}
}

// write says one line, when that is safe.
func (v *Voice) write(line string, safe func() bool) {
	for {
		v.turn <- struct{}{}
		if v.spoken() || safe() {
			v.tell(line)
			<-v.turn
			return
		}
		<-v.turn
		select {
		case <-v.begun:
		case <-time.After(time.Second): // the user may bring the wrapper to the foreground
		}
	}
}

// spoken reports whether the command has begun.
func (v *Voice) spoken() bool {
	select {
	case <-v.begun:
		return true
	default:
		return false
	}
}

// hush lets no line begin until speak, which the returned function calls. A line that is
// still being written after a moment is stuck in the kernel, and can no longer stop this
// process.
func (v *Voice) hush() (speak func()) {
	select {
	case v.turn <- struct{}{}:
		return func() { v.speak(); <-v.turn }
	case <-time.After(stuckAfter):
		return v.speak
	}
}

// speak says that the command has begun, or will not.
func (v *Voice) speak() { v.begin.Do(func() { close(v.begun) }) }

// finish writes the remaining messages, and waits for that no longer than lastWords. Later
// messages, from a goroutine of the store, are dropped. Call it once.
func (v *Voice) finish() {
	v.speak()
	close(v.last)
	select {
	case <-v.ended:
	case <-time.After(lastWords):
	}
}
