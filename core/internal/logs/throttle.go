// Package logs keeps a condition that lasts from filling the log, and a log that blocks from
// keeping anything else waiting.
package logs

import (
	"sync"
	"time"
)

// period is the least time between two lines about one condition.
const period = time.Minute

// Throttle lets one line through at once, and then one in a minute. If every request were
// worth a line, the lines would be a second outage. The zero value is ready. A Throttle is
// safe for concurrent use.
type Throttle struct {
	mu   sync.Mutex
	last time.Time // of the last line
	n    int       // events since
}

// Count counts one event. It returns how many events a line is to report now, which
// are those since the last line; or 0 if there was a line in the last minute.
func (t *Throttle) Count(now time.Time) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n++
	if !t.last.IsZero() && now.Sub(t.last) < period {
		return 0
	}
	n := t.n
	t.last, t.n = now, 0
	return n
}

// Warn counts a failure of work in the background, and writes a warning to a log unless there was one in
// the last minute. The warning has the error, and how many failures it reports.
func (t *Throttle) Warn(log *Log, text string, err error) {
	if n := t.Count(time.Now()); n > 0 {
		log.Warn(text, "error", err, "times", n)
	}
}
