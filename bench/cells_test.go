//go:build long

package main

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// smoke is long enough for every library to do something.
const smoke = 100 * time.Millisecond

// runShort runs a cell as a full run does, in separate processes.
func runShort(t *testing.T, row, library string) *result {
	t.Helper()
	return runFor(t, smoke, row, library)
}

func runFor(t *testing.T, window time.Duration, row, library string) *result {
	t.Helper()
	res, err := runCell(t.Context(), cell{Row: row, Library: library, Window: window, Way: time.Millisecond})
	if err != nil {
		t.Fatalf("%s/%s: %v", row, library, err)
	}
	return res
}

func TestEveryLibraryExcludes(t *testing.T) {
	for _, library := range with(peers, channel) {
		t.Run(library, func(t *testing.T) {
			t.Parallel()
			res := runShort(t, "one-key-128", library)
			if res.Violations != 0 {
				t.Errorf("%d violations", res.Violations)
			}
			if res.Errors != 0 {
				t.Errorf("%d errors, the first: %s", res.Errors, res.Error)
			}
		})
	}
}

// A checker that never fired has not been tested.
func TestAViolationIsSeenInAProcessAndBetweenProcesses(t *testing.T) {
	for _, row := range []string{"one-key-128-1ms", "hand-over"} {
		t.Run(row, func(t *testing.T) {
			t.Parallel()
			res := runShort(t, row, none)
			for window := 4 * smoke; res.Violations == 0 && window < time.Minute; window *= 4 {
				res = runFor(t, window, row, none) // a busy machine's processes may sleep through one
			}
			if res.Violations == 0 {
				t.Error("a lock that lets all in was not noticed")
			}
		})
	}
}

func TestEveryWorkloadMeasuresInterlock(t *testing.T) {
	for _, row := range rows {
		if row.keys > 10_000 || row.workers == 1000 && row.processes == 1 {
			continue // larger rows of a kind
		}
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			res := runShort(t, row.name, interlock)
			// On a machine that is busy with others a process may sleep through such a window,
			// or its window and the parent's lie apart.
			sections := res.Held == 0 && row.name != "idle"
			counted := func() bool { return !strings.HasPrefix(row.name, "free") || commandsEach(res) >= 2 }
			for window := 4 * smoke; sections && (res.sections() == 0 || !counted()) && window < time.Minute; window *= 4 {
				res = runFor(t, window, row.name, interlock)
			}
			switch {
			case res.Violations+res.Errors != 0 || res.Stuck+res.Lost != 0:
				t.Errorf("violations %d, errors %d (%s), stuck %d, lost %d",
					res.Violations, res.Errors, res.Error, res.Stuck, res.Lost)
			case sections && res.sections() == 0:
				t.Error("no goroutine got in")
			case res.Held > 0 && heapEach(res) < 100:
				t.Errorf("a lock takes %.0f bytes?", heapEach(res))
			case !counted():
				t.Errorf("%.1f commands for a lock and a release?", commandsEach(res))
			}
			r := newReport("")
			r.add(row.name, interlock, res)
			text := r.markdown()
			for _, want := range []string{"| interlock |", "`" + row.name + "`", "exclusion, all cells and rounds: 0"} {
				if !strings.Contains(text, want) {
					t.Errorf("the report lacks %q:\n%s", want, text)
				}
			}
		})
	}
}

func TestTheProcessThatSpinsDoesSoUntilTheParentEnds(t *testing.T) {
	p, err := startProcess(t.Context(), cell{Row: "free-1-busy", Spin: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.expect(t.Context(), "ready", setupTime); err != nil {
		t.Fatal(err)
	}
	used := func() string { // whole seconds, as in 0:00.12 and in 00:00:00; "" for none
		out, err := exec.Command("ps", "-o", "time=", "-p", strconv.Itoa(p.cmd.Process.Pid)).Output()
		if err != nil {
			t.Fatal(err)
		}
		whole, _, _ := strings.Cut(string(out), ".")
		return strings.Trim(whole, "0: \n")
	}
	for end := time.Now().Add(time.Minute); used() == "" && time.Now().Before(end); {
		time.Sleep(smoke / 10)
	}
	if err := p.in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil { // t.Context would kill it in the end
		t.Errorf("it ends with %v: %s", err, p.said())
	}
	if cpu := p.cmd.ProcessState.UserTime(); cpu < smoke/2 {
		t.Errorf("it used %v", cpu)
	}
}

func TestProfilesAreWritten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := runCell(t.Context(), cell{Row: "free-1", Library: interlock, Window: smoke, Profile: dir}); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "free-1-interlock-0.*"))
	if len(files) != 2 {
		t.Errorf("profiles: %q", files)
	}
}
