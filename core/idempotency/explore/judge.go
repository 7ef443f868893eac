package explore

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// outcome is the result of a run without faults that sends one request after the other. The judge compares all other runs with it.
type outcome struct {
	effects map[effect]int
	answers []Answer
	rows    map[string]string
	varies  map[string]bool // the rows that have other values in each run, or in another order of the requests
}

// outcome returns the outcome of the run.
func (w *World) outcome() *outcome {
	w.mu.Lock()
	defer w.mu.Unlock()
	o := &outcome{effects: map[effect]int{}, rows: maps.Clone(w.rows), varies: map[string]bool{}}
	for _, e := range w.effects {
		o.effects[e]++
	}
	for _, x := range w.answers {
		o.answers = append(o.answers, x.last)
	}
	return o
}

// unlike notes the rows that differ in two runs without faults.
func (o *outcome) unlike(other *outcome) {
	for key, value := range o.rows {
		if other.rows[key] != value {
			o.varies[key] = true
		}
	}
	for key := range other.rows {
		if _, ok := o.rows[key]; !ok {
			o.varies[key] = true
		}
	}
}

// judge returns the invariant that a run has broken, or an empty text.
func (w *World) judge() string {
	o := w.outcome()
	unknown, broken := w.settled()
	if want := w.service.reference; broken == "" && want != nil {
		broken = w.compare(o, want, unknown)
	}
	if broken == "" && w.service.Invariant != nil {
		if err := w.service.Invariant(w); err != nil {
			broken = err.Error()
		}
	}
	return broken
}

// settled looks at the answers and messages alone. It returns the requests and messages with an unknown outcome.
func (w *World) settled() (unknown map[string]bool, broken string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	unknown = map[string]bool{}
	for i, x := range w.answers {
		unknown[x.name] = x.last.Unknown
		switch want := w.service.reference; {
		case !x.settled:
			return nil, fmt.Sprintf("%s had no final answer after %v: %v", x.name, horizon, x.last)
		case len(x.successes) > 1:
			return nil, fmt.Sprintf("%s has %d answers: %s", x.name, len(x.successes),
				strings.Join(slices.Sorted(maps.Keys(x.successes)), ", and "))
		case want != nil && !x.last.Unknown && x.last.Status != want.answers[i].Status:
			return nil, fmt.Sprintf("%s was answered with %v; without faults %v", x.name, x.last, want.answers[i])
		}
	}
	for _, d := range w.delivered {
		switch {
		case w.service.Consumer == nil, d.acked:
		case d.aside:
			unknown[d.cause] = true
		default:
			return nil, fmt.Sprintf("%s was not consumed in %v: %v", d.name, horizon, d.last)
		}
	}
	return unknown, ""
}

// compare compares the effects and rows of a run with the run without faults.
func (w *World) compare(got, want *outcome, unknown map[string]bool) string {
	for _, e := range sortedEffects(got.effects, want.effects) {
		n, most := got.effects[e], want.effects[e]
		switch {
		case n > most:
			return fmt.Sprintf("%s: %s for %s; without faults %s", e.name, times(n), e.by(), times(most))
		case n < most && !unknown[e.cause]:
			return fmt.Sprintf("%s: %s for %s, which was answered; without faults %s", e.name, times(n), e.by(), times(most))
		}
	}
	for _, doubt := range unknown {
		if doubt {
			return "" // rows may be missing
		}
	}
	if len(got.rows) > len(want.rows) {
		return fmt.Sprintf("%d rows; without faults %d", len(got.rows), len(want.rows))
	}
	if !w.compareRows {
		return ""
	}
	for _, key := range slices.Sorted(maps.Keys(want.rows)) {
		switch value, ok := got.rows[key]; {
		case want.varies[key]:
		case !ok:
			return fmt.Sprintf("row %s is missing; without faults it is %q", key, want.rows[key])
		case value != want.rows[key]:
			return fmt.Sprintf("row %s is %q; without faults %q", key, value, want.rows[key])
		}
	}
	return ""
}

func sortedEffects(all ...map[effect]int) (sorted []effect) {
	union := map[effect]int{}
	for _, m := range all {
		maps.Copy(union, m)
	}
	return slices.SortedFunc(maps.Keys(union), func(a, b effect) int {
		return strings.Compare(a.cause+" "+a.name, b.cause+" "+b.name)
	})
}

func (e effect) by() string {
	if e.cause == "" {
		return "no request"
	}
	return e.cause
}

func times(n int) string {
	switch n {
	case 0:
		return "never"
	case 1:
		return "once"
	case 2:
		return "twice"
	}
	return fmt.Sprint(n, " times")
}

// tell describes the faults of a run in words.
func (w *World) tell(calm []place) string {
	var texts []string
	for _, f := range w.injected {
		texts = append(texts, f.tell(w.places, calm, w.service.Still))
	}
	return strings.Join(texts, ", then ")
}

// tell describes a fault. places are the visited places of its run, and calm the places of the run without faults.
func (f fault) tell(places, calm []place, still time.Duration) string {
	process := "process " + f.process
	switch f.action {
	case dies:
		process += " died "
	case pauses:
		process += fmt.Sprintf(" stood still for %v ", pause)
	case standsStill:
		process += fmt.Sprintf(" stood still for %v ", still)
	case cutOff:
		process += fmt.Sprintf(" was cut off from the store for %v ", still)
	case loses:
		if f.after || f.kind == answer {
			return process + " lost the answer of " + f.label
		}
		return process + " lost " + f.label + " on the way"
	case twice:
		return f.label + " came twice"
	case late:
		return fmt.Sprintf("%s came %v late", f.label, still)
	}
	before, after := neighbor(places, f.place, -1), neighbor(calm, f.place, 1)
	if f.after {
		before = f.label
	} else {
		after = f.label
	}
	switch {
	case before == "":
		return process + "before " + after
	case after == "":
		return process + "after " + before
	}
	return process + "after " + before + " and before " + after
}

// neighbor returns the label of the call of the process before or after a place.
func neighbor(places []place, at place, step int) string {
	for i := slices.Index(places, at); i >= 0 && i < len(places); i += step {
		if p := places[i]; p.process == at.process && p.label != at.label {
			return p.label
		}
	}
	return ""
}
