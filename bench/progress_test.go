package main

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// cellsOf returns cells whose warm-up and window are together 12 s.
func cellsOf(n int) []cell {
	cells := make([]cell, n)
	for i := range cells {
		cells[i].Window = 11 * time.Second
	}
	return cells
}

func TestTheTimeLeftIsTheirPlanAndWhatCellsTakeBesides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startProgress(new(bytes.Buffer), cellsOf(10))
		defer p.end()
		left := func(want time.Duration) {
			t.Helper()
			if got := p.left(time.Now()); got != want {
				t.Errorf("%v left, want %v", got, want)
			}
		}
		left(10 * (12*time.Second + aroundCell))
		p.begin(0)
		time.Sleep(5 * time.Second)
		left(10*(12*time.Second+aroundCell) - 5*time.Second)
		time.Sleep(9 * time.Second)
		p.begin(1) // the first took 14 s
		left(9 * 14 * time.Second)
		time.Sleep(time.Minute) // a cell that hangs
		left(8 * 14 * time.Second)
	})
}

func TestProgressIsALineNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := startProgress(&out, cellsOf(19))
		for i := range 19 {
			p.begin(i)
			time.Sleep(12 * time.Second)
		}
		p.say("that was all")
		p.end()
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if n := len(lines); n != 9 { // at once, and each half of 228 s
			t.Errorf("%d lines:\n%s", n, out.String())
		}
		if lines[0] != "cell 1 of 19, 4 min left" || lines[len(lines)-1] != "that was all" || strings.Contains(out.String(), "\x1b") {
			t.Errorf("the lines are:\n%s", out.String())
		}
	})
}

func TestATerminalHasOneLineThatIsRefreshed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := newProgress(&out, cellsOf(2), true)
		p.begin(0)
		time.Sleep(3*time.Second + time.Millisecond)
		p.say("one is done")
		p.end()
		text := out.String()
		if n := strings.Count(text, clearLine+"cell 1 of 2"); n != 4 { // at once and each second
			t.Errorf("shown %d times: %q", n, text)
		}
		if strings.Count(text, "\n") != 1 || !strings.Contains(text, clearLine+"one is done\n") || !strings.HasSuffix(text, clearLine) {
			t.Errorf("the terminal gets %q", text)
		}
	})
}

// The whole run is promised to take no longer than half an hour.
func TestTheDefaultRunTakesHalfAnHourAtMost(t *testing.T) {
	o, ok := parse(nil, new(bytes.Buffer))
	if !ok {
		t.Fatal("the defaults are wrong")
	}
	var sum time.Duration
	for round := range o.rounds {
		for _, c := range plan(round, o.only, o.span, o.hold) {
			// Setting up 100,000 locks takes the longest; half a second is what
			// cells take on average.
			sum += c.warmUp() + c.Window + 500*time.Millisecond
		}
	}
	if sum > 30*time.Minute || sum < 15*time.Minute {
		t.Errorf("it takes about %v", sum)
	}
	t.Logf("about %v", sum)
}
