package logs

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/interlock-go/interlock/core/internal/worker"
)

// lineWait bounds for how long a request waits until its line is written.
const lineWait = 50 * time.Millisecond

// Log writes lines to [slog.Default] on a separate goroutine: the handler of a log may
// block, as at a pipe that no process reads, while leases must end and be renewed. Lines that
// cannot be written are dropped and counted. The zero value is ready. A Log is safe for
// concurrent use.
type Log struct{ sink sink }

// Logger returns a logger that does not wait for the handler.
func (l *Log) Logger() *slog.Logger { return slog.New(&handler{sink: &l.sink}) }

// Line writes a line for a request, for which the caller waits for 50 ms at most. The
// handler gets the context of the request, most often before the request has ended.
func (l *Log) Line(ctx context.Context, level slog.Level, text string, args ...any) {
	slog.New(&handler{sink: &l.sink, wait: lineWait}).Log(ctx, level, text, args...)
}

// Dropped returns how many lines were dropped.
func (l *Log) Dropped() int64 { return l.sink.queue.Dropped() }

// Aside returns a logger that writes to l, or to [slog.Default] if l is nil, on a separate
// goroutine; see [Log]. It does not wait.
func Aside(l *slog.Logger) *slog.Logger {
	if l == nil {
		l = slog.Default()
	}
	if _, is := l.Handler().(*handler); is {
		return l // of a store that another one is made of
	}
	return slog.New(&handler{sink: new(sink), to: l.Handler()})
}

// sink is where the lines of one Log are written.
type sink struct {
	queue    worker.Queue
	reported atomic.Int64 // of the dropped lines
}

// handler is a [slog.Handler] in front of another one.
type handler struct {
	sink *sink
	to   slog.Handler  // nil: the handler of slog.Default
	wait time.Duration // 0: not at all
}

// Enabled implements [slog.Handler]. The handler behind decides it when it gets the line.
func (h *handler) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements [slog.Handler].
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	to := h.behind()
	r = r.Clone()
	write := func() {
		if !to.Enabled(ctx, r.Level) {
			return
		}
		if n := h.sink.queue.Dropped(); n > h.sink.reported.Load() {
			r.AddAttrs(slog.Int64("lines_dropped", n-h.sink.reported.Swap(n)))
		}
		_ = to.Handle(ctx, r) // there is no other place to say so
	}
	if h.wait == 0 {
		h.sink.queue.Put(write)
	} else {
		h.sink.queue.Await(write, h.wait)
	}
	return nil
}

// WithAttrs implements [slog.Handler].
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{sink: h.sink, to: h.behind().WithAttrs(attrs), wait: h.wait}
}

// WithGroup implements [slog.Handler].
func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{sink: h.sink, to: h.behind().WithGroup(name), wait: h.wait}
}

func (h *handler) behind() slog.Handler {
	if h.to == nil {
		return slog.Default().Handler()
	}
	return h.to
}
