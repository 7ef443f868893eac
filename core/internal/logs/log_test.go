package logs

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/internal/logtest"
)

// clogged is a handler of a log that blocks until open is closed.
type clogged struct {
	slog.Handler
	open chan struct{}
}

func (c clogged) Enabled(context.Context, slog.Level) bool { <-c.open; return true }

func TestALogThatBlocksKeepsNoCallerAndSaysLaterWhatIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := new(logtest.Log)
		behind := clogged{slog.NewTextHandler(text, nil), make(chan struct{})}
		before := slog.Default()
		defer slog.SetDefault(before)
		slog.SetDefault(slog.New(behind))
		var log Log
		requests := Requests{Log: &log}
		store := To(slog.Default()).With("node", "a")
		begin := time.Now()
		for range 2000 {
			log.Info("of the locker")
			requests.Line(t.Context(), slog.LevelWarn, "of a request")
			store.Warn("of a store")
		}
		if took := time.Since(begin); took != lineWait {
			t.Errorf("the callers waited for %v; want %v for the first request, and nothing for the others", took, lineWait)
		}
		missing := log.Dropped()
		if missing == 0 {
			t.Error("no line counts as dropped")
		}
		close(behind.open)
		synctest.Wait()
		log.Info("the last")
		synctest.Wait()
		if n := int64(text.Count("of the locker") + text.Count("of a request")); n != 4000-missing {
			t.Errorf("%d lines were written, and %d dropped; want 4000 together", n, missing)
		}
		if got := text.String(); !strings.Contains(got, "lines_dropped=") || !strings.Contains(got, `msg="of a store" node=a`) {
			t.Errorf("the log does not say that lines are missing, or has lost an attribute:\n%.2000s", got)
		}
	})
}

func TestALineNamesItsPlaceInTheSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := new(logtest.Log)
		log := To(slog.New(slog.NewTextHandler(text, &slog.HandlerOptions{AddSource: true})))
		log.Warn("of the locker")
		requests := Requests{Log: log}
		requests.Line(t.Context(), slog.LevelWarn, "of a request")
		synctest.Wait()
		for _, line := range strings.Split(strings.TrimSpace(text.String()), "\n") {
			if !strings.Contains(line, "log_test.go:") {
				t.Errorf("logged %q; want the line of this test as its source", line)
			}
		}
	})
}
