// Command scale confirms the cost model of docs/costs.md on real Redis servers, with many
// lockers; each locker is a separate process to the others. It prints the figures of the
// model and the measured figures as Markdown, and ends with status 1 if they differ by more
// than allowed.
package main

import (
	"context"
	"flag"
	"io"
	"log"
	"os"
	"os/signal"
	"time"
)

const (
	exitOff   = 1 // the model is wrong about something
	exitUsage = 2 // or something could not be run
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, out, errs io.Writer) int {
	flags := flag.NewFlagSet("scale", flag.ContinueOnError)
	flags.SetOutput(errs)
	window := flags.Duration("time", 4*time.Second, "for how long a workload is measured")
	said := log.New(errs, "", 0)
	if flags.Parse(args) != nil {
		return exitUsage
	}
	if *window <= 0 || flags.NArg() > 0 {
		said.Print("scale: time is positive, and there is nothing else; -h says more")
		return exitUsage
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()

	t := &table{}
	err := calibrate(ctx, t, 2*time.Second, *window)
	if _, failure := io.WriteString(out, t.markdown()); failure != nil && err == nil {
		err = failure
	}
	if err != nil {
		said.Print("scale: ", err)
		return exitUsage
	}
	if n := t.off(); n > 0 {
		said.Printf("scale: the model is off in %d of %d rows", n, len(t.rows))
		return exitOff
	}
	return 0
}
