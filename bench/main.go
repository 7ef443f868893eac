// Command bench runs the same workloads over Interlock, over the lock libraries
// that people use instead, and over raw baselines that say what there is to
// reach, and prints what it measured as Markdown.
//
//	go run . -rounds 1 -time 1s                a first look
//	go run . -only '^one-key-128/'             one row
//	go run . -only interlock -profile /tmp     where the time goes
//
// Every cell (a workload under a library) has a redis-server of its own and runs
// in processes of its own, and the libraries take turns in every round, so that
// what else the machine does hits all of them alike. docs/performance.md says how
// to read the result. It needs a Unix system, and redis-server or valkey-server.
package main

import (
	"context"
	"flag"
	"io"
	"log"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"time"
)

// exitViolation says that a lock let two in, which is the only thing that a
// script has to notice: slowness, and what could not be run, is in the table.
// exitUsage is about the harness itself.
const (
	exitViolation = 1
	exitUsage     = 2
)

func main() {
	if runChild() {
		return
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is the parent: it plans the cells, runs them and prints the report.
func run(args []string, out, errs io.Writer) int {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(errs)
	rounds := flags.Int("rounds", 5, "how often each cell runs; the report has medians")
	span := flags.Duration("time", 3*time.Second, "for how long a cell is measured; some workloads need longer and take it")
	hold := flags.Duration("hold", 2*time.Minute, "for how long 100,000 locks are held, in the first round only")
	only := flags.String("only", "", "a regular expression; cells whose workload/library matches are run")
	list := flags.Bool("list", false, "list the cells and end")
	profile := flags.String("profile", "", "a directory for the CPU and allocation profile of each cell")
	if flags.Parse(args) != nil {
		return exitUsage
	}
	said := log.New(errs, "", 0)
	match, err := regexp.Compile(*only)
	if err != nil || *rounds < 1 || *span <= 0 || *hold <= 0 || flags.NArg() > 0 {
		said.Print("bench: rounds, time and hold are positive, only is a regular expression, and there is nothing else; -h says more")
		return exitUsage
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()

	r := newReport()
	var names strings.Builder
	for round := range *rounds {
		for _, c := range plan(round, match, *span, *hold) {
			name := c.Row + "/" + c.Library
			if *list {
				names.WriteString(name + "\n")
				continue
			}
			if ctx.Err() != nil {
				break // the report of what there is so far
			}
			c.Profile = *profile
			res, err := runCell(ctx, c)
			r.add(c.Row, c.Library, res)
			if err != nil {
				said.Printf("round %d  %s: %v", round+1, name, err)
				continue
			}
			said.Printf("round %d  %s: %s", round+1, name, rowOf(c.Row).brief(res))
		}
		if *list {
			break
		}
	}
	text := names.String()
	if !*list {
		text = r.markdown(*rounds, *span)
	}
	if _, err := io.WriteString(out, text); err != nil {
		said.Print("bench: ", err)
		return exitUsage
	}
	if r.violations() > 0 {
		said.Print("bench: a lock let two in at once; see the report")
		return exitViolation
	}
	return 0
}

// plan lists the cells of a round. With which library a row begins changes with
// row and round, so that nobody always comes after the same one.
func plan(round int, match *regexp.Regexp, span, hold time.Duration) (cells []cell) {
	for i, row := range rows {
		window := max(span, row.least)
		if row.once {
			if round > 0 {
				continue
			}
			window = hold
		}
		for turn := range row.libraries {
			name := row.libraries[(turn+round+i)%len(row.libraries)]
			if match.MatchString(row.name + "/" + name) {
				cells = append(cells, cell{Row: row.name, Library: name, Window: window})
			}
		}
	}
	return cells
}
