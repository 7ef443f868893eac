//go:build unix

// Command race compares four ways to debit an account when a process stops at the worst
// moment: a row lock of PostgreSQL, redsync, redislock, and Interlock with its fencing
// token checked in the row.
//
//	go -C examples/race run .
//
// The command needs redis-server (or valkey-server) and PostgreSQL, and starts both itself,
// on sockets in a temporary directory. The accounts are in PostgreSQL, the locks in Redis.
// Under each approach four processes debit one account for five seconds (-each): each reads
// the balance, works for two milliseconds, and writes the new balance. The command stops one
// of them after the other (SIGSTOP) between its read and its write, waits until another
// process has written, and lets it continue (SIGCONT). Under SELECT ... FOR UPDATE no other
// process can write meanwhile; there the command waits for twice the lease of the locks.
//
// Processes stop like that in production: a container above its quota, a virtual machine that
// moves, a laptop that sleeps, a long collection of garbage. Locks with a lease all let the
// next holder in, so two holders overlap under redsync, redislock and Interlock alike. A lost
// update is a debit that a later write has overwritten. The fence prevents that: the row has
// the token of the newest holder, and refuses the write of an older one. A question to the
// lock before the write would not do: a process can stop after the question as well.
//
// The command exits with status 1 if an update was lost under SELECT ... FOR UPDATE or under
// Interlock. Without redis-server only SELECT ... FOR UPDATE runs.
//
// The files: debits.go has the four debits, worker.go a process that debits, race.go stops
// the processes and counts, servers.go starts the servers.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"
	"time"
)

func main() {
	if runWorker() {
		return
	}
	each := flag.Duration("each", 5*time.Second, "how long each approach runs")
	flag.Parse()
	log.SetFlags(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	rows, err := run(ctx, *each, os.Stdout)
	stop()
	if err != nil {
		log.Fatal("race: ", err)
	}
	for _, r := range rows {
		if r.safe && r.lost > 0 {
			log.Fatalf("race: %s lost %d updates; want none", r.name, r.lost)
		}
	}
}

// run runs all approaches for which there is a server, and prints their table.
func run(ctx context.Context, each time.Duration, out io.Writer) ([]row, error) {
	s, err := startServers(ctx, out)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	say(out, "%d processes debit one account, for %v under each approach. Holders are stopped between read and write, for longer than their lease of %v.\n\n",
		processes, each, lease)
	var rows []row
	for _, a := range approaches {
		if a.onRedis && s.redis == "" {
			continue
		}
		r, err := race(ctx, s, a, each)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a.name, err)
		}
		rows = append(rows, r)
	}
	show(out, rows)
	return rows, nil
}

// show prints the table.
func show(out io.Writer, rows []row) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	say(w, "approach\tdebits\tholders stopped\toverlaps of two holders\twrites refused\tlost updates\tfinal balance wrong by\n")
	for _, r := range rows {
		say(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\n", r.name, r.debits, r.stopped, r.overlaps, r.refused, r.lost, r.wrong)
	}
	_ = w.Flush() // a terminal that is gone needs no table
}

// say prints a line.
func say(out io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(out, format, args...) // a terminal that is gone reads nothing
}
