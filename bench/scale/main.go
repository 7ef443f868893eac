// Command scale confirms the cost model of docs/scaling.md: with thousands of
// lockers, each a process of its own to the others, on Redis servers in memory,
// and with fewer on real ones. It prints what the model says beside what was
// measured, as Markdown, and ends with status 1 if they differ by more than they
// may.
//
//	go run ./scale              all of it, five minutes
//	go run ./scale -real=false  the simulation alone
package main

import (
	"context"
	"flag"
	"fmt"
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
	processes := flags.Int("processes", 2000, "how many processes the simulation has, at least 160")
	servers := flags.Int("servers", 8, "how many servers it has")
	window := flags.Duration("time", 4*time.Second, "for how long a workload is measured")
	crowd := flags.Int("crowd", 100, "how many processes want one key in the last simulation")
	onReal := flags.Bool("real", true, "measure on real servers too")
	said := log.New(errs, "", 0)
	if flags.Parse(args) != nil {
		return exitUsage
	}
	if *processes < 160 || *servers < 1 || *window <= 0 || *crowd < 1 || flags.NArg() > 0 {
		said.Print("scale: processes are at least 160, the rest is positive, and there is nothing else; -h says more")
		return exitUsage
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()

	t := &table{}
	s := size{*processes, *servers, 2 * time.Second, *window}
	err := simulate(ctx, t, s)
	if err == nil {
		err = (&simulation{s, ctx, t}).crowd(*crowd)
	}
	text := fmt.Sprintf("**Simulated: %d processes in one, %d servers in memory**\n\n%s", *processes, *servers, t.markdown(0))
	if err == nil && *onReal {
		from := len(t.rows)
		err = calibrate(ctx, t, s)
		text += "\n**On real servers**\n\n" + t.markdown(from)
	}
	if _, failure := io.WriteString(out, text); failure != nil && err == nil {
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
