package core

import (
	"log/slog"
	"runtime/debug"
	"time"
)

// Functions of the user run in two ways. Where the caller of this package waits for
// one (a KeyFunc, Observer.Start, Acquired), a panic is the caller's: it passes
// through, after what was taken has been released. Where a loss or a renewal is
// told, the goroutine is the library's or a stranger's: see told.

// told calls a function of the user that is told something. A panic ends
// there: it is logged, and what comes after the call takes place.
func (l *Locker) told(name string, f func()) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		if n := l.panics.Count(time.Now()); n > 0 {
			slog.Error("interlock: a callback panicked", "callback", name, "panics", n, "panic", p, "stack", string(debug.Stack()))
		}
	}()
	f()
}
