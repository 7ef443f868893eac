package logs

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// lineWait bounds for how long a request waits until its line is written.
const lineWait = 50 * time.Millisecond

// Requests are the lines about the requests of one rule. Their methods wait until the line
// is written, for 50 ms at most, so that the handler of the log gets the context of the
// request most often before the request has ended. Only the goroutine of that request may call them: no other lease or claim
// waits for it. All other goroutines have a [Log], which has no method that waits.
// internal/checks lists the owners of a Requests.
//
// Each text has a separate [Throttle], so that no condition hides another one. Requests are
// safe for concurrent use.
type Requests struct {
	Log *Log // where they are written; set before the first call

	throttles sync.Map // text -> *Throttle
}

// Add counts a request, and writes a line unless there was a line with
// the same text in the last minute. The line has the name of the rule, how many requests it
// reports, and the cause of the last one. The text is a constant.
func (l *Requests) Add(ctx context.Context, level slog.Level, text, rule string, cause any) {
	t, ok := l.throttles.Load(text)
	if !ok {
		t, _ = l.throttles.LoadOrStore(text, new(Throttle))
	}
	if n := t.(*Throttle).Count(time.Now()); n > 0 {
		l.Line(ctx, level, text, "rule", rule, "requests", n, "error", cause)
	}
}

// Line writes a line about one request.
func (l *Requests) Line(ctx context.Context, level slog.Level, text string, args ...any) {
	l.await(ctx, level, text, args)
}

func (l *Requests) await(ctx context.Context, level slog.Level, text string, args []any) {
	l.Log.root().queue.Await(l.Log.line(ctx, level, text, args), lineWait)
}
