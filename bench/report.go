package main

import (
	"context"
	"fmt"
	"math"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

// metric is one figure of a result; NaN where there is nothing to divide by.
type metric func(*result) float64

// throughput is sections a second, of all goroutines and processes.
func throughput(r *result) float64 { return float64(r.sections()) / r.Elapsed.Seconds() }

// perSection is a part of a total. The parent's figures have another window than the
// children's, so both are rates first.
func perSection(total float64, window time.Duration, r *result) float64 {
	if r.sections() == 0 {
		return math.NaN()
	}
	return total / window.Seconds() / throughput(r)
}

// The cost of a section: Redis's commands and CPU, and the CPU and allocations of the
// clients. Waiting is paid for by the goroutine that gets in.
func commandsEach(r *result) float64 { return perSection(float64(r.Commands), r.Window, r) }
func redisCPUEach(r *result) float64 { return perSection(float64(r.RedisCPU), r.Window, r) }
func cpuEach(r *result) float64      { return perSection(float64(r.CPU), r.Elapsed, r) }
func allocsEach(r *result) float64   { return perSection(float64(r.Mallocs), r.Elapsed, r) }

// The same for workloads without sections: a second's commands, and the share of
// one core in percent, which is above 100 when several are busy.
func commandRate(r *result) float64   { return float64(r.Commands) / r.Window.Seconds() }
func cpuShare(r *result) float64      { return 100 * r.CPU.Seconds() / r.Elapsed.Seconds() }
func redisCPUShare(r *result) float64 { return 100 * r.RedisCPU.Seconds() / r.Window.Seconds() }

func p50(r *result) float64 { return quantile(r, 0.5) }
func p99(r *result) float64 { return quantile(r, 0.99) }

// quantile is of the waits of goroutines that got in. A goroutine that never did has no wait,
// so a library that starves many can have a good quantile: the report also has starved.
func quantile(r *result, q float64) float64 {
	if r.sections() == 0 {
		return math.NaN()
	}
	return float64(r.wait(q))
}

// longest also has the waits that the end of the window cut off.
func longest(r *result) float64    { return float64(r.Max) }
func fairness(r *result) float64   { return jain(r.Shares) }
func violations(r *result) float64 { return float64(r.Violations) }

// failures are unasked errors, and calls that did not even return when their
// context ended.
func failures(r *result) float64   { return float64(r.Errors + int64(r.Stuck)) }
func lost(r *result) float64       { return float64(r.Lost) }
func goroutines(r *result) float64 { return float64(r.Goroutines) }

// The memory of a held lock. Stacks are apart from the heap: goroutines have them.
func heapEach(r *result) float64       { return float64(r.Heap) / float64(r.Held) }
func stackEach(r *result) float64      { return float64(r.Stack) / float64(r.Held) }
func goroutinesEach(r *result) float64 { return float64(r.Goroutines) / float64(r.Held) }

// starved counts the goroutines that did not get the lock once.
func starved(r *result) float64 {
	n := 0
	for _, s := range r.Shares {
		if s == 0 {
			n++
		}
	}
	return float64(n)
}

// smallestShare is the sections of the process that had the fewest, as a part of
// its fair share.
func smallestShare(r *result) float64 {
	least, sum := int64(math.MaxInt64), int64(0)
	for _, n := range r.ByProcess {
		least, sum = min(least, n), sum+n
	}
	return float64(least) * float64(len(r.ByProcess)) / float64(max(sum, 1))
}

// column is a column of a row's table. The first of a row stands for it at a
// glance.
type column struct {
	title  string
	value  metric
	format func(float64) string
}

// worst marks a value that a median must not hide: the greatest of all rounds.
var worst = map[string]bool{"starved": true, "violations": true, "lost": true, "errors": true}

// The columns, by kind of workload.
var (
	sectionColumns = []column{
		{"sections/s", throughput, rate},
		{"wait p50", p50, nanos},
		{"p99", p99, nanos},
		{"max", longest, nanos},
		{"Jain", fairness, ratio2},
		{"starved", starved, count},
		{"Redis commands", commandsEach, ratio2},
		{"Redis CPU", redisCPUEach, nanos},
		{"client CPU", cpuEach, nanos},
		{"allocs", allocsEach, ratio1},
		{"goroutines", goroutines, count},
		{"errors", failures, count},
		{"violations", violations, count},
	}
	heldColumns = []column{
		{"client CPU %", cpuShare, ratio1},
		{"Redis CPU %", redisCPUShare, ratio1},
		{"Redis commands/s", commandRate, rate},
		{"heap B/lock", heapEach, count},
		{"stack B/lock", stackEach, count},
		{"goroutines/lock", goroutinesEach, ratio2},
		{"goroutines", goroutines, count},
		{"lost", lost, count},
		{"violations", violations, count},
	}
	handOverColumns = []column{
		{"p50", p50, nanos},
		{"p99", p99, nanos},
		{"max", longest, nanos},
		{"hand-overs/s", throughput, ratio1},
		{"Redis commands/s", commandRate, rate},
		{"client CPU %", cpuShare, ratio1},
		{"errors", failures, count},
		{"violations", violations, count},
	}
	idleColumns = []column{
		{"Redis commands/s", commandRate, ratio2},
		{"client CPU %", cpuShare, ratio2},
		{"goroutines", goroutines, count},
		{"errors", failures, count},
		{"violations", violations, count},
	}
)

// briefSections is a section workload in the progress log.
func briefSections(r *result) string {
	return fmt.Sprintf("%s/s, p99 %s, Jain %.2f", rate(throughput(r)), short(r.wait(0.99)), jain(r.Shares))
}

// The formats.
func rate(v float64) string {
	if v >= 10_000 {
		return fmt.Sprintf("%.1f k", v/1000)
	}
	return fmt.Sprintf("%.0f", v)
}
func ratio1(v float64) string { return fmt.Sprintf("%.1f", v) }
func ratio2(v float64) string { return fmt.Sprintf("%.2f", v) }
func count(v float64) string  { return fmt.Sprintf("%.0f", v) }
func nanos(v float64) string  { return short(time.Duration(v)) }

// short writes a duration with three digits at most.
func short(d time.Duration) string {
	for _, unit := range []struct {
		size time.Duration
		name string
	}{{time.Second, "s"}, {time.Millisecond, "ms"}, {time.Microsecond, "µs"}} {
		if d < unit.size {
			continue
		}
		v := float64(d) / float64(unit.size)
		digits := 2
		if v >= 100 {
			digits = 0
		} else if v >= 10 {
			digits = 1
		}
		text := fmt.Sprintf("%.*f", digits, v)
		if strings.Contains(text, ".") {
			text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
		}
		return text + " " + unit.name
	}
	return fmt.Sprint(int64(d), " ns")
}

// report has the measurements of all rounds, by row and library.
type report struct {
	about string // how it was measured, and where
	cells map[string]map[string]*outcome
}

// outcome is the outcome of a cell in all rounds.
type outcome struct {
	rounds []*result
	failed int
}

func newReport(about string) *report {
	return &report{about, map[string]map[string]*outcome{}}
}

// about says when, how and where a run measures, and which code.
func about(ctx context.Context, rounds int, span, way time.Duration) string {
	commit := "an unknown commit"
	if out, err := exec.CommandContext(ctx, "git", "rev-parse", "--short", "HEAD").Output(); err == nil {
		commit = "commit " + strings.TrimSpace(string(out))
	}
	return fmt.Sprintf("Measured on %s at %s. Rounds: %d of %v; %s, %s/%s, GOMAXPROCS %d. A network takes %v each way.", time.Now().Format(time.DateOnly), commit,
		rounds, span, runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0), way)
}

// add takes the result of a cell in a round; a nil result is a failure.
func (r *report) add(row, library string, res *result) {
	if r.cells[row] == nil {
		r.cells[row] = map[string]*outcome{}
	}
	o := r.cells[row][library]
	if o == nil {
		o = &outcome{}
		r.cells[row][library] = o
	}
	if res == nil {
		o.failed++
		return
	}
	o.rounds = append(o.rounds, res)
}

// violations counts all cells and rounds.
func (r *report) violations() (n int64) {
	for _, row := range r.cells {
		for _, o := range row {
			for _, res := range o.rounds {
				n += res.Violations
			}
		}
	}
	return n
}

// value is a metric's median over the rounds, or its greatest; false when there
// is none.
func (r *report) value(row, library string, m metric, greatest bool) (float64, bool) {
	o := r.cells[row][library]
	if o == nil || len(o.rounds) == 0 {
		return 0, false
	}
	var all []float64
	for _, res := range o.rounds {
		if v := m(res); !math.IsNaN(v) {
			all = append(all, v)
		}
	}
	switch {
	case len(all) == 0:
		return 0, false
	case greatest:
		return slices.Max(all), true
	}
	return median(all), true
}

// markdown is the report: the targets first, then a table for each workload.
func (r *report) markdown() string {
	out := new(strings.Builder)
	fmt.Fprint(out, r.about, `

Figures are medians; of starved, lost, errors and violations the worst round. A
section is a lock, the work and an unlock; Redis commands, CPU and allocations are
for one. Waits are of calls that got the lock, except that max counts the
others too, for as long as they were watched.
`)
	r.writeGlance(out)
	r.writeTargets(out)
	for _, row := range rows {
		if r.cells[row.name] == nil {
			continue
		}
		fmt.Fprintf(out, "\n### %s, %s (`%s`)\n\n", row.title, row.place(), row.name)
		titles := []string{""}
		for _, c := range row.columns {
			titles = append(titles, c.title)
		}
		writeRow(out, titles)
		writeRow(out, append([]string{"---"}, repeat("---:", len(row.columns))...))
		for _, library := range row.libraries {
			o := r.cells[row.name][library]
			if o == nil {
				continue
			}
			cells := []string{library}
			for _, c := range row.columns {
				text := "-"
				if v, ok := r.value(row.name, library, c.value, worst[c.title]); ok {
					text = c.format(v)
				}
				cells = append(cells, text)
			}
			writeRow(out, cells)
		}
		r.writeErrors(out, &row)
	}
	return out.String()
}

// writeGlance is one table of everything, with its heading.
func (r *report) writeGlance(out *strings.Builder) {
	fmt.Fprint(out, "\n### At a glance\n\n")
	r.writeTable(out)
}

// writeTable has a line for each row: the first of its columns, for each library.
func (r *report) writeTable(out *strings.Builder) {
	libraries := with(peers, channel)
	writeRow(out, append([]string{"workload", "way", ""}, libraries...))
	writeRow(out, append([]string{"---", "---", "---"}, repeat("---:", len(libraries))...))
	for _, row := range rows {
		if r.cells[row.name] == nil {
			continue
		}
		head := row.columns[0]
		cells := []string{row.title, row.place(), head.title}
		for _, library := range libraries {
			text := ""
			if v, ok := r.value(row.name, library, head.value, false); ok {
				text = head.format(v)
			}
			cells = append(cells, text)
		}
		writeRow(out, cells)
	}
}

// writeErrors lists the errors in the cells of a row.
func (r *report) writeErrors(out *strings.Builder, row *row) {
	for _, library := range row.libraries {
		o := r.cells[row.name][library]
		if o == nil {
			continue
		}
		for _, res := range o.rounds {
			if res.Error != "" {
				fmt.Fprintf(out, "\n%s: %d errors in a round, the first: %s\n", library, res.Errors, res.Error)
				break
			}
		}
		if o.failed > 0 {
			fmt.Fprintf(out, "\n%s: %d rounds failed altogether\n", library, o.failed)
		}
	}
}

func repeat(s string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = s
	}
	return all
}

// writeRow writes a line of a Markdown table.
func writeRow(out *strings.Builder, cells []string) {
	fmt.Fprintf(out, "| %s |\n", strings.Join(cells, " | "))
}
