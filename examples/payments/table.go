package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/interlock-go/interlock/core/observe"
)

// waits is an observe.Observer that notes how long each request waited for its lock, by
// the lock's kind.
// It passes all events to another observer.
type waits struct {
	next observe.Observer

	mu  sync.Mutex
	all map[string][]time.Duration
}

// Start implements observe.Observer.
func (w *waits) Start(ctx context.Context, op observe.Operation) (context.Context, observe.Observation) {
	ctx, observation := w.next.Start(ctx, op)
	next := observation.Acquired
	observation.Acquired = func(a observe.Acquired) {
		if next != nil {
			next(a)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.all == nil {
			w.all = make(map[string][]time.Duration)
		}
		w.all[op.Kind] = append(w.all[op.Kind], a.Waited)
	}
	return ctx, observation
}

func (w *waits) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = nil
}

func (w *waits) sorted(kind string) []time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(slices.Values(w.all[kind]))
}

// percentile returns the smallest of the sorted values that p percent of them
// do not exceed (nearest rank).
func percentile(sorted []time.Duration, p int) time.Duration {
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}

// printTable prints the table: a row for each quantity, a column for each
// result.
func printTable(out io.Writer, cfg config, results []result) error {
	where := "a server inside this process"
	if len(cfg.redis) > 0 {
		where = strings.Join(cfg.redis, ",")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "A bank that reads a balance, works for %v, and writes it back.\n", cfg.work)
	b.WriteString("It is served by net/http, gin, echo and gRPC; the locks are the same in all four.\n")
	fmt.Fprintf(&b, "%d clients at once, each moves 1; every account opens with %s.\n", clients, grouped(openingBalance))
	fmt.Fprintf(&b, "Redis: %s.\n", where)
	if cfg.postgres != "" {
		b.WriteString("The accounts, and the records of payments, are in PostgreSQL.\n")
	}
	b.WriteByte('\n')

	var cells strings.Builder
	row := func(name string, value func(result) string) {
		// All columns are aligned to the right; the first is filled up instead.
		fmt.Fprintf(&cells, "%-29s\t", name)
		for _, r := range results {
			cells.WriteString(value(r) + "\t")
		}
		cells.WriteString("\n")
	}
	row("", func(r result) string { return r.title })
	row("requests", func(r result) string { return strconv.Itoa(r.requests) })
	row("  done", func(r result) string { return strconv.Itoa(r.done) })
	row("    by http, gin, echo, grpc", func(r result) string { return shares(r.by) })
	row("  refused, lock busy", func(r result) string { return strconv.Itoa(r.refused) })
	if slices.ContainsFunc(results, func(r result) bool { return r.unknown > 0 }) {
		row("  outcome unknown", func(r result) string { return strconv.Itoa(r.unknown) })
	}
	row("final balance", func(r result) string { return sums(r.balances) })
	row("expected balance", func(r result) string { return sums(r.expected) })
	row("lost updates", func(r result) string { return strconv.FormatInt(r.missing(), 10) })
	row("wait for the lock, p50", func(r result) string { return waited(r.waits, 50) })
	row("wait for the lock, p99", func(r result) string { return waited(r.waits, 99) })
	row("Redis commands per request", func(r result) string { return fmt.Sprintf("%.2f", r.commands) })
	row("", verdict)
	table := tabwriter.NewWriter(&b, 0, 0, 3, ' ', tabwriter.AlignRight)
	if _, err := io.WriteString(table, cells.String()); err != nil {
		return err
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if cfg.postgres == "" {
		b.WriteString("\nOf the commands, two are the bank's own: one reads, one writes.\n")
	} else {
		b.WriteString("\nAll commands are the lock's: the bank asks PostgreSQL.\n")
	}
	b.WriteString("gRPC has no debit without the lock: its lock is in the proto.\n")
	_, err := io.WriteString(out, b.String())
	return err
}

// printTogether prints what ran together: a column without and one with the lock, or
// the permits.
func printTogether(out io.Writer, reports, ratings []together) error {
	var b strings.Builder
	row := func(name string, results []together, value func(together) string) {
		fmt.Fprintf(&b, "%-33s", name)
		for _, r := range results {
			fmt.Fprintf(&b, "%16s", value(r))
		}
		b.WriteString("\n")
	}
	common := func(what string, results []together) {
		row("", results, func(r together) string { return r.title })
		row(what, results, func(r together) string { return strconv.Itoa(r.asked) })
		row("  done by http, gin, echo, grpc", results, func(r together) string { return shares(r.by) })
	}
	last := func(results []together) {
		row("", results, func(r together) string { return r.verdict() })
	}

	fmt.Fprintf(&b, "\nNow the bank runs %d times. As processes do, they share nothing but the Redis. %d clients\n", processes, readers)
	fmt.Fprintf(&b, "ask for %d reports each, the sum of two accounts, while %d move money between the two. A\n", each, writers)
	b.WriteString("report reads one balance, works, and reads the other. It shares the locks of both with\n")
	b.WriteString("other reports; a transfer waits for them, and keeps new ones out.\n\n")
	common("reports", reports)
	row("  refused, lock busy", reports, func(r together) string { return strconv.Itoa(r.refused) })
	row("transfers meanwhile", reports, func(r together) string { return strconv.Itoa(r.meanwhile) })
	row("reports at once, at most", reports, func(r together) string { return strconv.Itoa(r.most) })
	row("sums with half a transfer", reports, func(r together) string { return strconv.Itoa(r.wrong) })
	row("wait for the shared lock, p99", reports, func(r together) string { return waited(r.waits, 99) })
	last(reports)

	fmt.Fprintf(&b, "\nA partner rates accounts. Its contract allows %d calls at once, from all of them together.\n", partnerLimit)
	fmt.Fprintf(&b, "%d clients ask for a rating at once, and the partner counts.\n\n", rated)
	common("ratings", ratings)
	row("  refused, no permit", ratings, func(r together) string { return strconv.Itoa(r.refused) })
	row("calls at once, at most", ratings, func(r together) string { return strconv.Itoa(r.most) })
	row("calls above the contract", ratings, func(r together) string { return strconv.Itoa(r.wrong) })
	row("wait for a permit, p99", ratings, func(r together) string { return waited(r.waits, 99) })
	last(ratings)
	_, err := io.WriteString(out, b.String())
	return err
}

func (r together) verdict() string {
	switch {
	case r.broken() != nil:
		return "BROKEN"
	case r.wrong > 0:
		return "wrong"
	}
	return "exact"
}

// printRepeats prints the outcome of the payments.
func printRepeats(out io.Writer, r repeats) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\nThen %d payments, each sent three times with its idempotency key, through the three\n", r.payments)
	b.WriteString("HTTP front ends: two at once, and one late. Over gRPC it is another request.\n\n")
	for _, row := range []struct {
		name  string
		value string
		shown bool
	}{
		{"requests", strconv.Itoa(r.requests), true},
		{"  carried out", strconv.Itoa(r.made), true},
		{"  replayed", strconv.Itoa(r.replayed), true},
		{"  refused, in flight", strconv.Itoa(r.inFlight), true},
		{"  refused, lock busy", strconv.Itoa(r.busy), true},
		{"  unavailable, or no answer", strconv.Itoa(r.unclear), r.unclear > 0},
		{"keys refused over gRPC", strconv.Itoa(r.crossed), true},
		{"final balance", grouped(r.balance), true},
		{"expected balance", grouped(r.expected()), true},
		{"payments never confirmed", strconv.Itoa(r.payments - r.confirmed), r.payments > r.confirmed},
		{"payments made twice, or lost", strconv.Itoa(r.wrong), true},
	} {
		if row.shown {
			fmt.Fprintf(&b, "%-31s%10s\n", row.name, row.value)
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}

func verdict(r result) string {
	switch {
	case r.broken() != nil:
		return "BROKEN"
	case r.missing() > 0:
		return "money lost"
	}
	return "exact"
}

// waited writes a percentile of waiting times.
func waited(sorted []time.Duration, p int) string {
	if len(sorted) == 0 {
		return "-"
	}
	return percentile(sorted, p).Round(100 * time.Microsecond).String()
}

// shares writes how many requests each front end completed.
func shares(by map[string]int) string {
	s := make([]string, len(frontends))
	for i, name := range frontends {
		s[i] = strconv.Itoa(by[name])
	}
	return strings.Join(s, "+")
}

// sums writes the balances of one or more accounts.
func sums(balances []int64) string {
	s := make([]string, len(balances))
	for i, n := range balances {
		s[i] = grouped(n)
	}
	return strings.Join(s, " + ")
}

// grouped writes a number with commas between its thousands.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
