package logs

import (
	"testing"
	"time"
)

func TestOneLineASecondReportsAllEvents(t *testing.T) {
	var throttle Throttle
	now := time.Now()
	for i, step := range []struct {
		after time.Duration
		want  int
	}{{0, 1}, {0, 0}, {999 * time.Millisecond, 0}, {time.Millisecond, 3}, {time.Millisecond, 0}, {time.Hour, 2}} {
		now = now.Add(step.after)
		if n := throttle.Count(now); n != step.want {
			t.Errorf("step %d: a line for %d events, want %d", i, n, step.want)
		}
	}
}
