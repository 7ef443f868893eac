package host

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/logs"
	"github.com/interlock-go/interlock/internal/logtest"
)

// A locker that begins to hear learns that calls may have been lost before, but only if the store reaches it.
func TestLockersLearnWhetherTheyAreReached(t *testing.T) {
	var l Lockers
	var a, b []driver.Call
	l.Calls("a", func(c driver.Call) { a = append(a, c) })
	l.Unsure(true)
	stop := l.Calls("b", func(c driver.Call) { b = append(b, c) })
	turn := driver.Call{What: driver.Turn, Key: "k"}
	if !l.Call("b", turn) || l.Call("c", turn) || !l.Has("b") || l.Has("c") {
		t.Error("a call of b and c; want that b alone is a locker of the process")
	}
	stop()
	if l.Unsure(false); l.Has("b") || l.Call("b", turn) {
		t.Error("b hears calls after their end")
	}
	if want := []driver.Call{{Reached: true}, {}}; !slices.Equal(a, want) {
		t.Errorf("a is called %+v; want %+v", a, want)
	}
	if want := []driver.Call{{Reached: true}, turn}; !slices.Equal(b, want) {
		t.Errorf("b is called %+v; want %+v", b, want)
	}
}

// No work begins after the end, the work under way is waited for, and a failure is logged once a minute.
func TestWorkEndsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := new(logtest.Log)
		w := Begin(logs.To(slog.New(slog.NewTextHandler(text, nil))))
		ended := false
		w.Go(func() {
			for w.Sleep(time.Hour, nil) {
				w.Failed("looking has failed", errors.New("no server"))
				w.Failed("looking has failed", errors.New("no server"))
			}
			ended = true
		})
		time.Sleep(150 * time.Minute)
		done := false
		if !w.Do(func() { done = true }) || !done {
			t.Error("Do has not carried the work out")
		}
		late := func() { t.Error("work has begun after the end") }
		if w.End(); w.Go(late) || w.Do(late) || !w.Closed() || w.Life().Err() == nil {
			t.Error("after its end the work goes on")
		}
		if w.Wait(); !ended {
			t.Error("Wait has returned before the end of the work")
		}
		w.Failed("closing", errors.New("late"))
		synctest.Wait()
		if n := strings.Count(text.String(), "looking has failed"); n != 2 || strings.Contains(text.String(), "late") {
			t.Errorf("the log is\n%s\nwant one line an hour, and nothing after the end", text)
		}
	})
}
