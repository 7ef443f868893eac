package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/interlock-go/interlock/bench/chart"
)

// pictures are the charts of a report, by the names of their files.
var pictures = []struct {
	file   string
	figure func(*report) *chart.Figure
}{
	{"bench-latency.svg", (*report).latencyChart},
	{"bench-throughput.svg", (*report).throughputChart},
	{"bench-fairness.svg", (*report).fairnessChart},
	{"bench-hand-over.svg", (*report).handOverChart},
	{"bench-held.svg", (*report).heldChart},
}

// drawAll draws the pictures into a directory; none if its name is empty. A picture
// without figures is left as it is, and that is said.
func (r *report) drawAll(dir string, errs io.Writer) error {
	if dir == "" {
		return nil
	}
	for _, p := range pictures {
		svg, err := p.figure(r).SVG()
		if errors.Is(err, chart.ErrNothing) {
			_, _ = fmt.Fprintf(errs, "bench: no figures for %s\n", p.file)
			continue
		} else if err != nil {
			return fmt.Errorf("%s: %w", p.file, err)
		}
		if err := os.WriteFile(filepath.Join(dir, p.file), svg, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// The libraries' tones where each has a line.
var tones = map[string]chart.Tone{
	interlock: chart.Blue, redsync: chart.Orange, redislock: chart.Green, rueidislock: chart.Pink,
}

// tone is the tone of a library's bar: the bar has a name, so only Interlock's tone differs.
func tone(library string) chart.Tone {
	if library == interlock {
		return chart.Blue
	}
	return chart.Grey
}

// measured returns the libraries that have a figure in a workload.
func (r *report) measured(libraries []string, workloads ...string) (list []string) {
	for _, library := range libraries {
		for _, w := range workloads {
			if o := r.cells[w][library]; o != nil && len(o.rounds) > 0 {
				list = append(list, library)
				break
			}
		}
	}
	return list
}

// latencyChart compares the latencies of a lone caller, on idle and on busy cores.
func (r *report) latencyChart() *chart.Figure {
	f := &chart.Figure{
		Title:  "A lone caller waits this long for a lock that is free",
		Note:   "Median, in brackets p99. Idle cores sleep between requests; a process that spins keeps busy ones awake.",
		Height: 290,
	}
	libraries := r.measured(with(peers), "free-1", "free-1-busy")
	longest := 0.0
	for _, at := range []struct{ row, head string }{
		{"free-1", "one goroutine, idle cores"},
		{"free-1-busy", "one goroutine, busy cores"},
	} {
		bars := &chart.Bars{Head: at.head, Axis: "µs from the call to the lock", Nameless: len(f.Panels) > 0, Ticks: plain}
		for _, library := range libraries {
			bar := chart.Bar{Name: library, Strong: library == interlock}
			if v, ok := r.value(at.row, library, p50, false); ok && v > 0 {
				bar.Parts = []chart.Segment{{Value: v / 1000, Tone: tone(library)}}
				bar.Label = nanos(v)
				longest = max(longest, v/1000)
				if tail, ok := r.value(at.row, library, p99, false); ok {
					bar.Label += " (" + nanos(tail) + ")"
				}
			}
			bars.Bars = append(bars.Bars, bar)
		}
		if bars.Any() {
			f.Panels = append(f.Panels, bars)
		}
	}
	for _, p := range f.Panels {
		p.(*chart.Bars).Max = longest
	}
	return f
}

// throughputChart is goroutines that do not meet, over their number.
func (r *report) throughputChart() *chart.Figure {
	lines := &chart.Lines{
		Head: "pairs of lock and release a second (logarithmic)", Axis: "goroutines, each with its own key",
		X: chart.Scale{Log: true, At: []float64{1, 16, 64, 256}, Text: plain},
		Y: chart.Scale{Log: true, Text: kilo}, Named: true,
	}
	for _, library := range append(slices.Clone(peers), interlock) {
		s := chart.Series{Name: library, Tone: tones[library], Strong: library == interlock, Marks: true}
		for _, n := range []int{1, 16, 64, 256} {
			if v, ok := r.value(fmt.Sprint("free-", n), library, throughput, false); ok {
				s.Points = append(s.Points, chart.Point{X: float64(n), Y: v})
				if n == 256 {
					s.Name += " " + rate(v)
				}
			}
		}
		lines.Series = append(lines.Series, s)
	}
	return &chart.Figure{
		Title:  "Locks that nobody else wants",
		Note:   "Throughput on one Redis, over the number of goroutines. Higher is better.",
		Height: 380, Panels: []chart.Panel{lines},
	}
}

// lucky are the parts of the goroutines in the fairness chart, the luckiest first.
var lucky = []struct {
	name string
	upTo float64 // of all goroutines
	tone chart.Tone
}{
	{"the luckiest 1 %", 0.01, chart.Ember},
	{"the next 9 %", 0.1, chart.Sand},
	{"the next 40 %", 0.5, chart.Sky},
	{"the other half", 1, chart.Deep},
}

// split returns the share of the sections of each part of the goroutines, in percent; nil
// without sections.
func split(shares []int64) []float64 {
	sorted := slices.Sorted(slices.Values(shares))
	slices.Reverse(sorted)
	var sum int64
	for _, n := range sorted {
		sum += n
	}
	if sum == 0 {
		return nil
	}
	parts := make([]float64, len(lucky))
	from := 0
	for i, l := range lucky {
		to := int(math.Round(l.upTo * float64(len(sorted))))
		for _, n := range sorted[from:max(from, to)] {
			parts[i] += 100 * float64(n) / float64(sum)
		}
		from = max(from, to)
	}
	return parts
}

// fairnessChart is how the grants of a hot key are shared.
func (r *report) fairnessChart() *chart.Figure {
	const row = "one-key-1000"
	f := &chart.Figure{
		Title:  "Which of 1,000 goroutines get a lock that all of them want",
		Note:   "Shares of all grants. The luckiest 1 % should have 1 %.",
		Height: 330,
	}
	for _, l := range lucky {
		f.Legend = append(f.Legend, chart.Key{Name: l.name, Tone: l.tone})
	}
	bars := &chart.Bars{Head: "share of the grants, then grants a second and goroutines that never had one", Axis: "% of all grants", Ticks: plain}
	fair := chart.Bar{Name: "equal shares"}
	from := 0.0
	for _, l := range lucky {
		fair.Parts = append(fair.Parts, chart.Segment{Value: 100 * (l.upTo - from), Tone: l.tone})
		from = l.upTo
	}
	libraries := r.measured(with(peers, channel), row)
	for _, library := range libraries {
		bar := chart.Bar{Name: library, Strong: library == interlock}
		if library == channel {
			bar.Name = "channel, no Redis"
		}
		var sum []float64
		rounds := 0.0
		for _, res := range r.cells[row][library].rounds {
			if parts := split(res.Shares); parts != nil {
				sum, rounds = plus(sum, parts), rounds+1
			}
		}
		for i, v := range sum {
			bar.Parts = append(bar.Parts, chart.Segment{Value: v / rounds, Tone: lucky[i].tone})
		}
		speed, _ := r.value(row, library, throughput, false)
		none, _ := r.value(row, library, starved, true)
		bar.Label = fmt.Sprintf("%s/s, %.0f starved", rate(speed), none)
		bars.Bars = append(bars.Bars, bar)
	}
	if len(libraries) == 0 {
		return f
	}
	bars.Bars = append(bars.Bars, fair)
	f.Panels = []chart.Panel{bars}
	return f
}

// plus adds two lists; the first may be nil.
func plus(a, b []float64) []float64 {
	sum := slices.Clone(b)
	for i := range a {
		sum[i] += a[i]
	}
	return sum
}

// handOverChart is how long a lock takes from one process to another.
func (r *report) handOverChart() *chart.Figure {
	f := &chart.Figure{
		Title:  "From the release in one process to the grant in another",
		Note:   "Share of the hand-overs that took at most so long. Further left is better.",
		Height: 360,
	}
	low, high := math.Inf(1), math.Inf(-1)
	shown := map[string]bool{}
	for _, at := range []struct{ row, head string }{
		{"hand-over-1", "one key, one waiter"},
		{"hand-over", "eight keys, a waiter each"},
	} {
		lines := &chart.Lines{
			Head: at.head, Axis: "time (logarithmic)",
			X: chart.Scale{Log: true, Text: nanos},
			Y: chart.Scale{Min: 0, Max: 100, At: []float64{0, 25, 50, 75, 100}, Text: func(v float64) string { return plain(v) + " %" }},
		}
		if len(f.Panels) > 0 {
			lines.Y.Text = func(float64) string { return " " } // as on the left
		}
		for _, library := range with(peers) { // the thick line below the others
			points := r.spread(at.row, library)
			if len(points) == 0 {
				continue
			}
			shown[library] = true
			low, high = min(low, points[0].X), max(high, points[len(points)-1].X)
			lines.Series = append(lines.Series, chart.Series{
				Name: library, Tone: tones[library], Strong: library == interlock, Points: points,
			})
		}
		if len(lines.Series) > 0 {
			f.Panels = append(f.Panels, lines)
		}
	}
	for _, p := range f.Panels {
		p.(*chart.Lines).X.Min, p.(*chart.Lines).X.Max = low/1.2, high*1.2
	}
	for _, library := range with(peers) {
		if shown[library] {
			f.Legend = append(f.Legend, chart.Key{Name: library, Tone: tones[library], Line: true})
		}
	}
	return f
}

// spread is the distribution of the waits of a cell in all rounds.
func (r *report) spread(row, library string) (points []chart.Point) {
	o := r.cells[row][library]
	if o == nil {
		return nil
	}
	var all hist
	for _, res := range o.rounds {
		all.merge(res.Waits)
	}
	var total, seen float64
	for _, n := range all {
		total += float64(n)
	}
	for i, n := range all {
		if n == 0 {
			continue
		}
		at := float64(valueOf(i))
		if seen == 0 {
			points = append(points, chart.Point{X: at, Y: 0})
		}
		seen += float64(n)
		points = append(points, chart.Point{X: at, Y: 100 * seen / total})
	}
	return points
}

// heldChart shows the cost of 10,000 locks that are kept.
func (r *report) heldChart() *chart.Figure {
	const row = "held-10000"
	f := &chart.Figure{
		Title:  "What 10,000 held locks cost",
		Note:   "One process, leases of 3 s, renewed each second. Shorter is better.",
		Legend: []chart.Key{{Name: "heap, or CPU", Tone: chart.Grey}, {Name: "stacks of goroutines", Tone: chart.Mist}},
		Height: 310,
	}
	libraries := r.measured(with(peers), row)
	for _, at := range []struct {
		head, axis string
		first      metric
		second     metric
		format     func(float64) string
	}{
		{"memory of the process", "bytes a lock", heapEach, stackEach, count},
		{"CPU of the process", "% of a core", cpuShare, nil, ratio1},
		{"CPU of Redis", "% of a core", redisCPUShare, nil, ratio1},
	} {
		bars := &chart.Bars{Head: at.head, Axis: at.axis, Nameless: len(f.Panels) > 0, Ticks: plain}
		for _, library := range libraries {
			bar := chart.Bar{Name: library, Strong: library == interlock}
			var labels []string
			part := func(m metric, t chart.Tone) {
				if v, ok := r.value(row, library, m, false); ok && v > 0 {
					bar.Parts = append(bar.Parts, chart.Segment{Value: v, Tone: t})
					labels = append(labels, at.format(v))
				}
			}
			part(at.first, tone(library))
			if at.second != nil {
				paler := chart.Mist
				if library == interlock {
					paler = chart.Sky
				}
				part(at.second, paler)
			}
			bar.Label = strings.Join(labels, " + ")
			bars.Bars = append(bars.Bars, bar)
		}
		if bars.Any() {
			f.Panels = append(f.Panels, bars)
		}
	}
	return f
}

// plain writes a number as it is, and kilo thousands as k.
func plain(v float64) string {
	if whole := math.Round(v); math.Abs(v-whole) < 1e-9 || v >= 100 {
		return thousands(int(whole))
	}
	return fmt.Sprintf("%.3g", v)
}

func kilo(v float64) string {
	if v >= 1000 {
		return plain(v/1000) + " k"
	}
	return plain(v)
}
