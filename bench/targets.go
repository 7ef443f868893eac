package main

import (
	"fmt"
	"strings"
	"time"
)

// target is something that Interlock set out to reach, relative to what others
// reach in the same run wherever that makes sense.
type target struct {
	row     string
	promise string
	metric  metric
	format  func(float64) string
	atLeast bool    // the figure must not be smaller than the bound, else not greater
	bound   float64 // the bound, or the factor to the reference
	// The reference is the best value of these libraries in the same figure; none is an
	// absolute bound.
	best  []string
	worst bool // over the rounds, not the median
}

// targets are judged by the same medians that the tables show, so that a reader
// can check each of them. They are in the order of the workloads.
var targets = []target{
	faster("free-1", "95 % of redislock, one caller", 0.95, []string{redislock}),
	faster("free-1", "ahead of redsync and rueidislock, one caller", 1, []string{redsync, rueidislock}),
	faster("free-1-far", "95 % of the best peer, one caller", 0.95, peers),
	faster("free-16", "95 % of the best peer, 16 callers", 0.95, peers),
	faster("free-16-far", "as fast as the best peer, 16 callers", 1, peers),
	faster("free-64", "as fast as the best peer, 64 callers", 1, peers),
	faster("free-64-far", "as fast as the best peer, 64 callers", 1, peers),
	faster("free-256", "1.6 x the best peer, 256 callers", 1.6, peers),
	faster("free-256-far", "1.4 x the best peer, 256 callers", 1.4, peers),
	{row: "free-1", promise: "at most 23 allocations", metric: allocsEach, format: ratio1, bound: 23},
	faster("one-key-128", "100 x the best peer", 100, peers),
	faster("one-key-128", "45 % of a channel", 0.45, []string{channel}),
	fair("one-key-128"), noneStarved("one-key-128"), even("one-key-128"),
	faster("one-key-1000", "100 x the best peer", 100, peers),
	faster("one-key-1000", "45 % of a channel", 0.45, []string{channel}),
	fair("one-key-1000"), noneStarved("one-key-1000"), even("one-key-1000"),
	faster("one-key-128-1ms", "97 % of a channel", 0.97, []string{channel}),
	faster("one-key-1000-1ms", "97 % of a channel", 0.97, []string{channel}),
	faster("processes", "30 x the best peer", 30, peers),
	{
		row: "processes", promise: "each process at least half of its fair share",
		metric: smallestShare, format: ratio2, atLeast: true, bound: 0.5,
	},
	{
		row: "processes", promise: "p99 wait at most 100 ms",
		metric: p99, format: nanos, bound: float64(100 * time.Millisecond),
	},
	faster("zipf", "as fast as the best peer", 1, peers),
	{
		row: "zipf", promise: "p99 wait at most half of rueidislock's",
		metric: p99, format: nanos, bound: 0.5, best: []string{rueidislock},
	},
	noneStarved("zipf"),
	{row: "held-10000", promise: "CPU at most 5 % of a core", metric: cpuShare, format: percent, bound: 5},
	noneLost("held-10000"), noneLost("held-100000"),
	{row: "held-100000", promise: "CPU at most 5 % of a core", metric: cpuShare, format: percent, bound: 5},
	{row: "held-100000", promise: "heap at most 600 B a lock", metric: heapEach, format: count, bound: 600},
	{row: "held-100000", promise: "at most 10 goroutines in all", metric: goroutines, format: count, bound: 10},
	soon("hand-over-1", "p50 at most that of rueidislock, one waiter", 1),
	soon("hand-over-1", "the aim: 80 % of it", 0.8),
	soon("hand-over", "p50 at most that of rueidislock, eight keys", 1),
	soon("hand-over", "the aim: 80 % of it", 0.8),
	{row: "idle", promise: "at most 2 commands/s", metric: commandRate, format: ratio2, bound: 2},
	{row: "idle", promise: "no goroutine for each waiter (at most 20)", metric: goroutines, format: count, bound: 20},
}

// faster wants a throughput of at least factor times the throughput of the best peer.
func faster(row, promise string, factor float64, best []string) target {
	return target{
		row: row, promise: promise, metric: throughput, format: rate,
		atLeast: true, bound: factor, best: best,
	}
}

// soon wants the median hand-over within factor times the median of rueidislock. A message
// wakes its waiters, too.
func soon(row, promise string, factor float64) target {
	return target{
		row: row, promise: promise, metric: p50, format: nanos,
		bound: factor, best: []string{rueidislock},
	}
}

// fair wants all callers to get the same: 0.99 is a spread of a tenth.
func fair(row string) target {
	return target{row: row, promise: "Jain's index at least 0.99", metric: fairness, format: ratio3, atLeast: true, bound: 0.99}
}

// noneStarved and noneLost hold in every round, not in the middle one.
func noneStarved(row string) target {
	return target{row: row, promise: "nobody starved", metric: starved, format: count, worst: true}
}

func noneLost(row string) target {
	return target{row: row, promise: "none lost", metric: lost, format: count, worst: true}
}

// even is first in, first out: with that all waits of a round are alike.
func even(row string) target {
	return target{
		row: row, promise: "p99 wait at most twice the median",
		metric: func(r *result) float64 { return p99(r) / max(p50(r), 1) }, format: ratio2, bound: 2,
	}
}

func percent(v float64) string { return fmt.Sprintf("%.2f %%", v) }
func ratio3(v float64) string  { return fmt.Sprintf("%.3f", v) }

// verdict is a target and its result.
type verdict struct {
	measured, bound float64
	against         string  // the best of the reference
	ratio           float64 // to the reference; 0 without one
	met             bool
}

// judge returns the verdict, or false when a cell that it takes was not run, as
// with -only. The best of several peers is the best peer that was run: a peer that failed
// makes the target easier, which its row in the table shows.
func (r *report) judge(t target) (v verdict, ok bool) {
	v.measured, ok = r.value(t.row, interlock, t.metric, t.worst)
	if !ok {
		return v, false
	}
	v.bound = t.bound
	if len(t.best) > 0 {
		var top float64
		for _, library := range t.best {
			x, ok := r.value(t.row, library, t.metric, false)
			if ok && (v.against == "" || x > top == t.atLeast) {
				top, v.against = x, library
			}
		}
		if v.against == "" {
			return v, false
		}
		v.bound = top * t.bound
		if top > 0 {
			v.ratio = v.measured / top
		}
	}
	v.met = v.measured <= v.bound
	if t.atLeast {
		v.met = v.measured >= v.bound
	}
	return v, true
}

// writeTargets writes the verdicts that can be given.
func (r *report) writeTargets(out *strings.Builder) {
	head := false
	for _, t := range targets {
		v, ok := r.judge(t)
		if !ok {
			continue
		}
		if !head {
			head = true
			fmt.Fprint(out, "\n### What Interlock set out to reach\n\n")
			writeRow(out, []string{"workload", "target", "measured", "bound", "ratio", ""})
			writeRow(out, []string{"---", "---", "---:", "---:", "---", "---"})
		}
		compared, met := "", "missed"
		if v.against != "" {
			compared = fmt.Sprintf("%.2f x %s", v.ratio, v.against)
		}
		if v.met {
			met = "met"
		}
		writeRow(out, []string{"`" + t.row + "`", t.promise, t.format(v.measured), t.format(v.bound), compared, met})
	}
	fmt.Fprintf(out, "\nViolations of mutual exclusion, all cells and rounds: %d.\n", r.violations())
}
