package logs

import (
	"context"
	"log/slog"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/interlock-go/interlock/core/internal/worker"
)

// Log writes lines on a separate goroutine: the handler of a log may block, as at a pipe
// that no process reads, while leases must end and be renewed. No method waits for the
// handler. Lines that cannot be written are dropped and counted. The zero value writes to
// [slog.Default]. A Log is safe for concurrent use.
type Log struct {
	to       *slog.Logger // nil: slog.Default, at the time of the line
	of       *Log         // whose queue it uses; nil: its own
	queue    worker.Queue
	reported atomic.Int64 // of the dropped lines
}

// To returns a Log that writes to l, or to [slog.Default] if l is nil.
func To(l *slog.Logger) *Log { return &Log{to: l} }

// With returns a Log with further attributes. It shares the queue of l.
func (l *Log) With(args ...any) *Log {
	return &Log{to: l.logger().With(args...), of: l.root()}
}

// Debug writes a line of that level, as the method of [slog.Logger] does.
func (l *Log) Debug(text string, args ...any) { l.put(slog.LevelDebug, text, args) }

// Info writes a line of that level.
func (l *Log) Info(text string, args ...any) { l.put(slog.LevelInfo, text, args) }

// Warn writes a line of that level.
func (l *Log) Warn(text string, args ...any) { l.put(slog.LevelWarn, text, args) }

// Error writes a line of that level.
func (l *Log) Error(text string, args ...any) { l.put(slog.LevelError, text, args) }

// Dropped returns how many lines were dropped.
func (l *Log) Dropped() int64 { return l.root().queue.Dropped() }

func (l *Log) put(level slog.Level, text string, args []any) {
	l.root().queue.Put(l.line(context.Background(), level, text, args))
}

// line returns the function that writes a line. The handler decides there whether it wants
// the level. The place of the line in the source is the caller of the
// exported method.
func (l *Log) line(ctx context.Context, level slog.Level, text string, args []any) (write func()) {
	var caller [1]uintptr
	runtime.Callers(4, caller[:])
	r := slog.NewRecord(time.Now(), level, text, caller[0])
	r.Add(args...)
	to := l.logger().Handler()
	return func() {
		if !to.Enabled(ctx, r.Level) {
			return
		}
		root := l.root()
		if n := root.queue.Dropped(); n > root.reported.Load() {
			r.AddAttrs(slog.Int64("lines_dropped", n-root.reported.Swap(n)))
		}
		_ = to.Handle(ctx, r) // there is no other place to say so
	}
}

func (l *Log) root() *Log {
	if l.of != nil {
		return l.of
	}
	return l
}

func (l *Log) logger() *slog.Logger {
	if l.to == nil {
		return slog.Default()
	}
	return l.to
}
