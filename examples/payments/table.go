package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// row is a quantity: a row of a table.
type row struct {
	name  string
	value func(t *trial) string
}

func number(name string, n func(t *trial) int) row {
	return row{name, func(t *trial) string { return grouped(int64(n(t))) }}
}

func title(t *trial) string { return t.title }

// byFrontend is how many requests each front end completed.
var byFrontend = row{"    by http, gin, echo, grpc", func(t *trial) string {
	s := make([]string, len(frontends))
	for i, name := range frontends {
		s[i] = strconv.Itoa(t.by[name])
	}
	return strings.Join(s, "+")
}}

var (
	asked   = func(t *trial) int { return t.asked }
	done    = number("  done", func(t *trial) int { return t.done })
	refused = number("  refused, lock busy", func(t *trial) int { return t.refused })
	most    = func(t *trial) int { return t.most }
	wrong   = func(t *trial) int { return int(t.wrong) }
	final   = row{"final balance", func(t *trial) string { return sums(t.balances) }}
	want    = row{"expected balance", func(t *trial) string { return sums(t.expected) }}
)

// verdict is the last row of a table, which names the fault if something went wrong.
func verdict(lost string) row {
	return row{"", func(t *trial) string {
		switch {
		case t.broken():
			return "BROKEN"
		case t.wrong > 0:
			return lost
		}
		return "exact"
	}}
}

// table prints a row for each quantity, and a column for each trial.
func table(b *strings.Builder, width int, trials []*trial, rows ...row) {
	for _, r := range rows {
		fmt.Fprintf(b, "%-31s", r.name)
		for _, t := range trials {
			fmt.Fprintf(b, "%*s", width, r.value(t))
		}
		b.WriteString("\n")
	}
}

// tables prints the results of the demonstration.
func tables(cfg config, where string, changes, reports, ratings []*trial, payments *trial) string {
	b := &strings.Builder{}
	fmt.Fprintf(b, "A bank that reads a balance, works for %v, and writes it back.\n", cfg.work)
	b.WriteString("It is served by net/http, gin, echo and gRPC; the locks are the same in all four.\n")
	fmt.Fprintf(b, "%d clients at once, each moves 1; every account opens with %s.\n", clients, grouped(openingBalance))
	fmt.Fprintf(b, "Redis: %s.\n", where)
	asks := "Of the commands, two are the bank's own: one reads, one writes."
	if cfg.postgres != "" {
		b.WriteString("The accounts, and the records of payments, are in PostgreSQL.\n")
		asks = "All commands are the lock's: the bank asks PostgreSQL."
	}
	b.WriteByte('\n')
	table(b, 19, changes, row{"", title}, number("requests", asked), done, byFrontend, refused, final, want,
		number("lost updates", wrong), wait("wait for the lock, p50", 50), wait("wait for the lock, p99", 99),
		row{"Redis commands per request", func(t *trial) string { return fmt.Sprintf("%.2f", t.commands) }}, verdict("money lost"))
	fmt.Fprintf(b, "\n%s\ngRPC has no debit without the lock: its lock is in the proto.\n", asks)

	fmt.Fprintf(b, "\nNow the bank runs %d times. As processes do, they share nothing but the Redis. %d clients\n", processes, readers)
	fmt.Fprintf(b, "ask for %d reports each, the sum of two accounts, while %d move money between the two. A\n", each, writers)
	b.WriteString("report reads one balance, works, and reads the other. It shares the locks of both with\n")
	b.WriteString("other reports; a transfer waits for them, and keeps new ones out.\n\n")
	table(b, 16, reports, row{"", title}, number("reports", asked), done, byFrontend, refused,
		number("transfers meanwhile", func(t *trial) int { return t.meanwhile }), number("reports at once, at most", most),
		number("sums with half a transfer", wrong), wait("wait for the shared lock, p99", 99), verdict("wrong"))

	fmt.Fprintf(b, "\nA partner rates accounts. Its contract allows %d calls at once, from all of them together.\n", partnerLimit)
	fmt.Fprintf(b, "%d clients ask for a rating at once, and the partner counts.\n\n", rated)
	table(b, 16, ratings, row{"", title}, number("ratings", asked), done, byFrontend,
		number("  refused, no permit", func(t *trial) int { return t.refused }), number("calls at once, at most", most),
		number("calls above the contract", wrong), wait("wait for a permit, p99", 99), verdict("wrong"))

	fmt.Fprintf(b, "\nThen %d payments, each sent three times with its idempotency key, through the three\n", paid)
	b.WriteString("HTTP front ends: two at once, and one late. Over gRPC it is another request.\n\n")
	table(b, 10, []*trial{payments}, number("requests", asked),
		number("  carried out", func(t *trial) int { return t.done - t.replayed }), number("  replayed", func(t *trial) int { return t.replayed }),
		number("tries refused, in flight", func(t *trial) int { return t.inFlight }), number("tries refused, lock busy", func(t *trial) int { return t.busy }),
		number("keys refused over gRPC", func(t *trial) int { return t.crossed }), final, want, number("payments made twice, or lost", wrong))
	return b.String()
}

// wait is a percentile of waiting times: the smallest that p percent do not exceed.
func wait(name string, p int) row {
	return row{name, func(t *trial) string {
		if len(t.waits) == 0 {
			return "-"
		}
		return t.waits[max(0, (len(t.waits)*p+99)/100-1)].Round(100 * time.Microsecond).String()
	}}
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
