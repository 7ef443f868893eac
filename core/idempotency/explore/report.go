package explore

import (
	"fmt"
	"io"
	"log"
	"log/slog"
	"strings"
	"sync"
)

// Report counts the runs, and has the first failure.
type Report struct {
	// Points is the number of places that the runs without faults visited: before and after each request to the store and
	// each call to the outside, and each step and answer, in each setting.
	Points int
	// Runs is the number of runs, and Failed the number of runs that broke an invariant.
	Runs, Failed int
	// Pairs is the number of pairs of faults that are possible.
	Pairs int
	// Failure is the first failure, with the fewest faults; nil if there is none.
	Failure *Failure
	// Trace is the trace of the run of [Path].
	Trace []string

	injected []fault // of the failure
}

// String returns the report in a line.
func (r *Report) String() string {
	return fmt.Sprintf("%d points visited in %d runs, of which %d failed; %d pairs of faults are possible", r.Points, r.Runs, r.Failed, r.Pairs)
}

// Failure is a run that broke an invariant.
type Failure struct {
	// Faults says what happened: "process A died after POST /charge of bank and before commit of the answer". It is
	// empty if the run had no fault.
	Faults string
	// Broken says which invariant was broken: "POST /charge of bank: twice for request 1; without faults once".
	Broken string
	// Path is the argument of the option [Path] that repeats the run. It is empty if the run had no fault.
	Path string
	// Trace has the visited places in their order.
	Trace []string
}

// String returns the failure in several lines.
func (f *Failure) String() string {
	var b strings.Builder
	if f.Faults == "" {
		fmt.Fprintf(&b, "without any fault: %s", f.Broken)
	} else {
		fmt.Fprintf(&b, "%s: %s\n\trepeat it with explore.Path(%q)", f.Faults, f.Broken, f.Path)
	}
	for _, line := range f.Trace {
		b.WriteString("\n\t" + line)
	}
	return b.String()
}

// fail counts and notes a failing run.
func (r *Report) fail(w *World, calm []place, broken string) {
	r.Failed++
	r.keep(w, calm, broken)
}

// keep notes a failing run, unless there is one already.
func (r *Report) keep(w *World, calm []place, broken string) {
	if r.Failure != nil {
		return
	}
	r.injected = w.injected
	r.Failure = &Failure{Broken: broken, Trace: w.lines()}
	if len(w.injected) > 0 {
		r.Failure.Faults, r.Failure.Path = w.tell(calm), path(w.setting, w.injected)
	}
}

// lines returns the trace. Of several tries with one answer it has the first.
func (w *World) lines() (lines []string) {
	const most = 60
	var try []string // the lines since the last answer
	said := map[string]string{}
	for _, e := range w.trace {
		line := fmt.Sprintf("%9.3fs  %-4s %s", e.at.Seconds(), e.process, e.label)
		if e.cause != "" && !strings.Contains(e.label, e.cause) {
			line += " (" + e.cause + ")"
		}
		if e.note != "" {
			line += " -- " + e.note
		}
		try = append(try, line)
		if e.label != "" || e.cause == "" {
			continue
		}
		if said[e.cause] != e.note || len(try) > 2 {
			lines = append(lines, try...)
		}
		said[e.cause], try = e.note, nil
	}
	if lines = append(lines, try...); len(lines) > most {
		lines = append(lines[:most:most], fmt.Sprintf("and %d lines more", len(lines)-most))
	}
	return lines
}

// silence discards the output of log/slog for as long as something is explored.
var silence struct {
	sync.Mutex
	users int
	back  func()
}

// quiet discards the output of log/slog until the returned function is called.
func quiet() (loud func()) {
	silence.Lock()
	defer silence.Unlock()
	if silence.users++; silence.users == 1 {
		logger, out, flags := slog.Default(), log.Writer(), log.Flags()
		slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil)))
		log.SetOutput(out) // which SetDefault has changed
		log.SetFlags(flags)
		silence.back = func() {
			slog.SetDefault(logger)
			log.SetOutput(out)
			log.SetFlags(flags)
		}
	}
	return func() {
		silence.Lock()
		defer silence.Unlock()
		if silence.users--; silence.users == 0 {
			silence.back()
		}
	}
}
