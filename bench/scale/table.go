package main

import (
	"fmt"
	"math"
	"strings"
)

// How far a measurement may be from the model.
const (
	exactly = 0.02 // counts
	nearly  = 0.10 // counts over a time
	roughly = 0.30 // values that depend on the scheduler of a busy machine
	loosely = 0.50 // times, which such a machine only makes longer
)

// table is the report: the figures of the model and the measured figures.
type table struct {
	rows []row
}

type row struct {
	workload, what  string
	model, measured float64
	tolerance       float64
}

// add compares.
func (t *table) add(workload, what string, model, measured, tolerance float64) {
	t.rows = append(t.rows, row{workload, what, model, measured, tolerance})
}

// note only tells: there is no model of it.
func (t *table) note(workload, what string, measured float64) {
	t.add(workload, what, math.NaN(), measured, 0)
}

// deviation is the measured value's distance from the model, as a share of it.
func (r row) deviation() float64 {
	switch {
	case r.measured == r.model:
		return 0
	case r.model == 0:
		return math.Inf(1)
	}
	return r.measured/r.model - 1
}

// off reports whether the model is wrong about the row.
func (r row) off() bool { return !math.IsNaN(r.model) && !(math.Abs(r.deviation()) <= r.tolerance) }

// off counts the rows about which the model is wrong.
func (t *table) off() (n int) {
	for _, r := range t.rows {
		if r.off() {
			n++
		}
	}
	return n
}

// markdown is the table.
func (t *table) markdown() string {
	var b strings.Builder
	b.WriteString("| workload | what | model | measured | deviation | tolerance |\n| --- | --- | ---: | ---: | ---: | ---: |\n")
	for _, r := range t.rows {
		model, deviation, tolerance := "", "", ""
		if !math.IsNaN(r.model) {
			model, deviation = number(r.model), fmt.Sprintf("%+.1f %%", 100*r.deviation())
			tolerance = fmt.Sprintf("%.0f %%", 100*r.tolerance)
			if r.off() {
				deviation += " **off**"
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", r.workload, r.what, model, number(r.measured), deviation, tolerance)
	}
	return b.String()
}

func number(f float64) string {
	switch {
	case f == math.Trunc(f) && math.Abs(f) < 1e6:
		return fmt.Sprintf("%.0f", f)
	case math.Abs(f) >= 100:
		return fmt.Sprintf("%.0f", f)
	case math.Abs(f) >= 10:
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.2f", f)
}
