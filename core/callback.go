package core

import (
	"runtime/debug"
	"time"

	"github.com/interlock-go/interlock/core/internal/logs"
	"github.com/interlock-go/interlock/core/internal/worker"
)

// Functions of the user run in two ways. Some run on the goroutine of a caller of this
// package, before the caller has a lock or with the outcome (a KeyFunc, Observer.Start,
// Acquired): they keep that caller alone, and a panic is the caller's. It passes through,
// after the locks of that caller have been released. The others are callbacks. The locker
// calls them on separate goroutines, because they may block, and leases end and are renewed
// all the same.

const (
	// callbacksMost bounds the calls that wait because earlier ones have not returned. All
	// leases of a process may be lost at the same time.
	callbacksMost = 1 << 15
	// callbacksAtOnce bounds the calls that run at the same time, where the order does not
	// matter.
	callbacksAtOnce = 256
	// observerWait bounds for how long a release, or the end of Close, waits for the observer.
	observerWait = 250 * time.Millisecond
)

// callbacks call the functions of the user that are no caller's, and write the log.
type callbacks struct {
	observed worker.Queue // Observation.Lost and Renewed, in their order
	released worker.Queue // Observation.Released, for which the caller waits a while
	lost     worker.Queue // OnLost
	log      logs.Log
	panics   logs.Throttle
}

func (c *callbacks) init() {
	c.observed.Most, c.lost.Most = callbacksMost, callbacksMost
	c.lost.Workers, c.released.Workers = callbacksAtOnce, callbacksAtOnce
}

// told calls a function of the user. A panic ends there: it is logged, and what comes after
// the call takes place.
func (c *callbacks) told(name string, f func()) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		if n := c.panics.Count(time.Now()); n > 0 {
			c.log.Error("interlock: a callback panicked",
				"callback", name, "panics", n, "panic", p, "stack", string(debug.Stack()))
		}
	}()
	f()
}

// Undelivered returns how many calls of the [observe.Observer] (Lost, Renewed and Released) and
// of [OnLost], and how many lines of its log, this Locker has dropped. It calls these functions,
// and the handler of [slog.Default], on separate goroutines. If they do not return, because a log
// leads into a pipe that no process reads, further calls wait, some 32,000 at the most, and then
// they are dropped. Leases end and are renewed all the same.
func (l *Locker) Undelivered() int64 {
	c := &l.calls
	return c.observed.Dropped() + c.released.Dropped() + c.lost.Dropped() + c.log.Dropped()
}
