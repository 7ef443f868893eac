// Package logtest has a log for tests that is read while it is written.
package logtest

import (
	"bytes"
	"log"
	"log/slog"
	"strings"
	"sync"
	"testing"
)

// Log keeps the output of a handler of log/slog. The zero value is empty, and ready for use.
// A Log is safe for concurrent use.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements [io.Writer].
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns the text so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Logger returns a logger that writes to the log.
func (l *Log) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// Default returns a Log of the output of [slog.Default] until the test ends.
func Default(t testing.TB) *Log {
	l := new(Log)
	SetDefault(t, l.Logger().Handler())
	return l
}

// SetDefault has [slog.Default] write to a handler until the test ends.
func SetDefault(t testing.TB, h slog.Handler) {
	before, out, flags := slog.Default(), log.Writer(), log.Flags()
	slog.SetDefault(slog.New(h)) // and so the output of package log
	t.Cleanup(func() {
		slog.SetDefault(before)
		log.SetOutput(out)
		log.SetFlags(flags)
	})
}

// Count returns how many times the log says something.
func (l *Log) Count(text string) int { return strings.Count(l.String(), text) }
