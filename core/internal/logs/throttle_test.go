package logs

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestOneLineAMinuteReportsAllEvents(t *testing.T) {
	var throttle Throttle
	now := time.Now()
	for i, step := range []struct {
		after time.Duration
		want  int
	}{{0, 1}, {0, 0}, {time.Minute - 1, 0}, {1, 3}, {time.Millisecond, 0}, {time.Hour, 2}} {
		now = now.Add(step.after)
		if n := throttle.Count(now); n != step.want {
			t.Errorf("step %d: a line for %d events, want %d", i, n, step.want)
		}
	}
}

func TestALineDoesNotHideALineWithAnotherText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		old := slog.Default()
		slog.SetDefault(slog.New(slog.NewTextHandler(&text, nil)))
		defer slog.SetDefault(old)
		lines := Requests{Log: new(Log)}
		for range 3 {
			lines.Add(t.Context(), slog.LevelWarn, "down", "debit", errors.New("refused"))
			lines.Add(t.Context(), slog.LevelError, "wrong", "debit", "no key")
		}
		time.Sleep(time.Minute)
		lines.Add(t.Context(), slog.LevelWarn, "down", "debit", errors.New("refused"))
		for line, want := range map[string]int{
			"level=WARN msg=down rule=debit requests=1 error=refused":      1,
			"level=WARN msg=down rule=debit requests=3 error=refused":      1,
			"level=ERROR msg=wrong rule=debit requests=1 error=\"no key\"": 1,
			"level=": 3,
		} {
			if got := strings.Count(text.String(), line); got != want {
				t.Errorf("%d times %q, want %d:\n%s", got, line, want, &text)
			}
		}
	})
}
