// Package logtest has a log for tests that is read while it is written.
package logtest

import (
	"bytes"
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
	before := slog.Default()
	slog.SetDefault(l.Logger())
	t.Cleanup(func() { slog.SetDefault(before) })
	return l
}

// Count returns how many times the log says something.
func (l *Log) Count(text string) int { return strings.Count(l.String(), text) }
