// Package logs keeps a condition that lasts from filling the log.
package logs

import (
	"cmp"
	"sync"
	"time"
)

// Throttle lets one line through in each period. If every request were worth a line, the
// lines would be a second outage. The zero value is ready. A Throttle is safe for
// concurrent use.
type Throttle struct {
	// Period is the least time between two lines. Default: a second. It must not change
	// after the first event.
	Period time.Duration

	mu   sync.Mutex
	last time.Time // of the last line
	n    int       // events since
}

// Count counts one event. It returns how many events a line is to report now, which
// are those since the last line; or 0 if there was a line in the last period.
func (t *Throttle) Count(now time.Time) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n++
	if !t.last.IsZero() && now.Sub(t.last) < cmp.Or(t.Period, time.Second) {
		return 0
	}
	n := t.n
	t.last, t.n = now, 0
	return n
}
