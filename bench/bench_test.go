package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMain makes the test binary a process of a cell, as the program itself is.
func TestMain(m *testing.M) {
	// In the processes of the cells too: a machine that stalls loses none of the locks.
	rowOf("held-10000").lease = defaultLease
	if runChild() {
		return
	}
	os.Exit(m.Run())
}

// smoke is long enough for every library to do something.
const smoke = 100 * time.Millisecond

// runShort runs a cell as a full run does, in processes of its own.
func runShort(t *testing.T, row, library string) *result {
	t.Helper()
	return runFor(t, smoke, row, library)
}

func runFor(t *testing.T, window time.Duration, row, library string) *result {
	t.Helper()
	res, err := runCell(t.Context(), cell{Row: row, Library: library, Window: window})
	if err != nil {
		t.Fatalf("%s/%s: %v", row, library, err)
	}
	return res
}

func TestEveryLibraryExcludes(t *testing.T) {
	for _, library := range with(peers, append(raws, channel)...) {
		t.Run(library, func(t *testing.T) {
			t.Parallel()
			row := "one-key-128"
			if library == rawAuto || library == rawShared {
				row = "free-16" // they have no waiting worth the name
			}
			res := runShort(t, row, library)
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
				t.Error("a lock that lets everybody in was not noticed")
			}
		})
	}
}

func TestEveryWorkloadMeasuresInterlock(t *testing.T) {
	for _, row := range rows {
		if row.keys > 10_000 || row.workers == 1000 && row.processes == 1 {
			continue // larger ones of a kind
		}
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			res := runShort(t, row.name, interlock)
			// On a machine that is busy with others a process may sleep through
			// such a window.
			sections := res.Held == 0 && row.name != "idle"
			for window := 4 * smoke; sections && res.sections() == 0 && window < time.Minute; window *= 4 {
				res = runFor(t, window, row.name, interlock)
			}
			switch {
			case res.Violations+res.Errors != 0 || res.Stuck+res.Lost != 0:
				t.Errorf("violations %d, errors %d (%s), stuck %d, lost %d",
					res.Violations, res.Errors, res.Error, res.Stuck, res.Lost)
			case sections && res.sections() == 0:
				t.Error("nobody got in")
			case res.Held > 0 && heapEach(res) < 100:
				t.Errorf("a lock takes %.0f bytes?", heapEach(res))
			case strings.HasPrefix(row.name, "free") && commandsEach(res) < 2:
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
	time.Sleep(10 * smoke) // also on a machine that is busy with others it spins then
	if err := p.in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil { // t.Context would kill it in the end
		t.Errorf("it ends with %v: %s", err, p.said())
	}
	if cpu := p.cmd.ProcessState.UserTime(); cpu < smoke/2 {
		t.Errorf("it used %v in %v", cpu, 10*smoke)
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

func TestQuantilesAreWithinABucket(t *testing.T) {
	var h hist
	for i := 1; i <= 1000; i++ {
		h.add(time.Duration(i) * time.Millisecond)
	}
	for q, want := range map[float64]time.Duration{0.5: 500 * time.Millisecond, 0.99: 990 * time.Millisecond} {
		if got := h.quantile(q); got < want*97/100 || got > want*103/100 {
			t.Errorf("quantile %v is %v, want about %v", q, got, want)
		}
	}
	for _, d := range []time.Duration{0, 1, 31, 32, 63, 64, 12345, time.Hour} {
		if i := bucketOf(d); i < histSize-1 && bucketOf(valueOf(i)) != i {
			t.Errorf("%v is in bucket %d, whose middle %v is not", d, i, valueOf(i))
		}
	}
	if got := new(hist).quantile(0.5); got != 0 {
		t.Errorf("the median of nothing is %v", got)
	}
}

func TestFairnessAndMedian(t *testing.T) {
	for _, c := range []struct {
		shares []int64
		want   float64
	}{{[]int64{5, 5, 5, 5}, 1}, {[]int64{8, 0, 0, 0}, 0.25}, {[]int64{0, 0}, 0}} {
		if got := jain(c.shares); got != c.want {
			t.Errorf("jain(%v) = %v, want %v", c.shares, got, c.want)
		}
	}
	if got := median([]float64{9, 1, 5}); got != 5 {
		t.Errorf("median of 9, 1, 5 is %v", got)
	}
	if got := median([]float64{9, 1, 5, 6}); got != 5.5 {
		t.Errorf("median of 9, 1, 5, 6 is %v", got)
	}
}

// of makes a result with so many sections in a second.
func of(sections int64) *result {
	return &result{Elapsed: time.Second, Window: time.Second, Shares: []int64{sections}, Waits: new(hist)}
}

func TestTargetsAreMeasuredAgainstTheBestOfTheOthers(t *testing.T) {
	r := newReport("")
	r.add("free-256", interlock, of(300))
	r.add("free-256", redsync, of(100))
	r.add("free-256", redislock, of(150))
	r.add("free-256", rueidislock, nil) // failed
	v, ok := r.judge(faster("free-256", "", 1.5, peers))
	if !ok || !v.met || v.against != redislock || v.ratio != 2 || v.bound != 225 {
		t.Errorf("verdict %+v, %v", v, ok)
	}
	if v, _ := r.judge(faster("free-256", "", 3, peers)); v.met {
		t.Errorf("3 x is met? %+v", v)
	}
	if _, ok := r.judge(faster("free-256", "", 1, raws)); ok {
		t.Error("judged against libraries that were not run")
	}
	if _, ok := r.judge(fair("zipf")); ok {
		t.Error("judged a workload that was not run")
	}
}

func TestArguments(t *testing.T) {
	var out, log bytes.Buffer
	if code := run([]string{"-list", "-only", "^zipf/(interlock|channel)$"}, &out, &log); code != 0 {
		t.Errorf("-list ends with %d: %s", code, log.String())
	}
	if got := strings.Fields(out.String()); len(got) != 2 {
		t.Errorf("-list says %q", got)
	}
	for _, bad := range [][]string{{"-rounds", "0"}, {"-only", "("}, {"-time", "0s"}, {"-x"}, {"word"}} {
		if code := run(bad, &out, &log); code != 2 {
			t.Errorf("%q ends with %d", bad, code)
		}
	}
}
