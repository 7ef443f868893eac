// Command bench runs the same workloads over Interlock, over the lock libraries that people
// use instead, prints the figures as Markdown, and draws them.
//
//	go run . -rounds 1 -time 1s                a first look
//	go run . -only '^one-key-128/'             one row
//	go run . -way 1ms -only far/               with a server behind a network of 1 ms each way
//	go run . -only interlock -profile /tmp     where the time goes
//	go run . -from results.json                the last report again, and its pictures
//
// Every cell (a workload under a library) has its own redis-server and its own
// processes. The libraries take turns in every round, so that other load on the
// machine hits all of them alike. docs/costs.md says how to read the result. It
// needs a Unix system, and redis-server or valkey-server.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"time"
)

// exitViolation says that a lock let two in, which is the only thing that a script
// has to notice: slowness and cells that could not be run are in the table.
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

// options are the settings of the command line.
type options struct {
	rounds     int
	span, hold time.Duration
	way        time.Duration
	only       *regexp.Regexp
	list       bool
	profile    string
	pictures   string
	page       string
	save, from string
}

// parse reads the command line; false if it cannot be carried out, which has been
// said then.
func parse(args []string, errs io.Writer) (o options, ok bool) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.IntVar(&o.rounds, "rounds", 5, "how often each cell runs; the report has medians")
	flags.DurationVar(&o.span, "time", 1500*time.Millisecond, "for how long a cell is measured; some workloads need longer and take it")
	flags.DurationVar(&o.hold, "hold", 2*time.Minute, "for how long 100,000 locks are held, in the first round only")
	flags.DurationVar(&o.way, "way", 250*time.Microsecond, "how long data take to a server behind a network, and as long back; zero leaves out the workloads on such a server")
	only := flags.String("only", "", "a regular expression; cells whose workload/library matches are run")
	flags.BoolVar(&o.list, "list", false, "list the cells and end")
	flags.StringVar(&o.profile, "profile", "", "a directory for the CPU and allocation profile of each cell")
	flags.StringVar(&o.pictures, "pictures", "../docs/pictures", "a directory for the pictures of the report, bench-*.svg; with -only or one round they are drawn if this is set")
	flags.StringVar(&o.page, "page", "../docs/costs.md", "a page for the figures at a glance, between its two marks; with -only or one round it is written if this is set")
	flags.StringVar(&o.save, "save", "results.json", "a file for all that was measured; with -only or one round it is written if this is set")
	flags.StringVar(&o.from, "from", "", "a file that -save wrote: nothing is run, and its report and pictures are made again")
	if flags.Parse(args) != nil {
		return o, false
	}
	var err error
	o.only, err = regexp.Compile(*only)
	if err != nil || o.rounds < 1 || o.span <= 0 || o.hold <= 0 || o.way < 0 || flags.NArg() > 0 {
		_, _ = fmt.Fprintln(errs, "bench: rounds, time and hold are positive, only is a regular expression, and there is nothing else; -h says more")
		return o, false
	}
	if (*only != "" || o.rounds == 1) && o.from == "" {
		// A part of the cells, or a first look, must not take the place of a whole run.
		set := map[string]bool{}
		flags.Visit(func(f *flag.Flag) { set[f.Name] = true })
		if !set["pictures"] {
			o.pictures = ""
		}
		if !set["page"] {
			o.page = ""
		}
		if !set["save"] {
			o.save = ""
		}
	}
	return o, true
}

// run is the parent: it plans the cells, runs them and makes the report.
func run(args []string, out, errs io.Writer) int {
	o, ok := parse(args, errs)
	if !ok {
		return exitUsage
	}
	if err := o.run(out, errs); err != nil {
		_, _ = fmt.Fprintln(errs, "bench:", err)
		if errors.Is(err, errViolation) {
			return exitViolation
		}
		return exitUsage
	}
	return 0
}

var errViolation = errors.New("a lock let two in at once; see the report")

func (o *options) run(out, errs io.Writer) error {
	var cells []cell
	for round := range o.rounds {
		cells = append(cells, o.plan(round)...)
		if o.list {
			break
		}
	}
	if o.list {
		for _, c := range cells {
			if _, err := fmt.Fprintln(out, c.name()); err != nil {
				return err
			}
		}
		return nil
	}
	var r *report
	var err error
	if o.from != "" {
		if r, err = loadReport(o.from); err != nil {
			return err
		}
	} else {
		var whole bool
		if r, whole = o.measure(cells, errs); !whole {
			o.save, o.pictures, o.page = "", "", "" // the report so far
		}
		if err := r.save(o.save); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(out, r.markdown()); err != nil {
		return err
	}
	if err := r.drawAll(o.pictures, errs); err != nil {
		return err
	}
	if err := r.writePage(o.page); err != nil {
		return err
	}
	if r.violations() > 0 {
		return errViolation
	}
	return nil
}

// measure runs the cells; false if it was interrupted.
func (o *options) measure(cells []cell, errs io.Writer) (r *report, whole bool) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	r = newReport(about(ctx, o.rounds, o.span, o.way))
	for i, c := range cells {
		if ctx.Err() != nil {
			return r, false
		}
		c.Profile = o.profile
		res, err := runCell(ctx, c)
		r.add(c.Row, c.Library, res)
		came := fmt.Sprint(err)
		if err == nil {
			came = rowOf(c.Row).brief(res)
		}
		_, _ = fmt.Fprintf(errs, "%d of %d, round %d  %s: %s\n", i+1, len(cells), c.Round+1, c.name(), came)
	}
	return r, ctx.Err() == nil
}

// plan lists the cells of a round. The first library of a row changes with row and round, so
// that no library always follows the same other.
func (o *options) plan(round int) (cells []cell) {
	for i, row := range rows {
		if row.far && o.way == 0 {
			continue
		}
		window := max(o.span, row.least)
		if row.once {
			if round > 0 {
				continue
			}
			window = cmp.Or(row.least, o.hold)
		}
		for turn := range row.libraries {
			name := row.libraries[(turn+round+i)%len(row.libraries)]
			if o.only.MatchString(row.name + "/" + name) {
				cells = append(cells, cell{Row: row.name, Library: name, Round: round, Window: window, Way: o.way})
			}
		}
	}
	return cells
}
