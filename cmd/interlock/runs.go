package main

import (
	"context"
	"flag"
	"log/slog"
	"strconv"
	"time"

	"github.com/interlock-go/interlock/cmd/interlock/internal/run"
	"github.com/interlock-go/interlock/cmd/interlock/internal/show"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/internal/display"
)

var runsCommand = &command{
	brief:   true,
	name:    "runs",
	args:    "KEY...",
	short:   "show the last run of commands, and whether they have run in this period",
	records: true,
	long: `Shows, for each KEY of interlock run -per or -record, the last run: its beginning, its time,
its exit status and its host. With -per, as the run has it, THIS PERIOD is done, running or missing.
Exit code 3 if a period has no run that has succeeded, without -per if a last run is missing or failed. ` + quoting,
	examples: [][2]string{
		{"runs nightly-report", "when it ran last, where, and its status"},
		{"runs -per 24h nightly-report || alert", "for a monitor: it has not succeeded today"},
	},
	setup: func(fs *flag.FlagSet) action {
		var o lastRuns
		durationVar(fs, &o.per, "per", 0, "the `period` of the runs: whether this one has a run that succeeded")
		fs.StringVar(&o.zone, "zone", "UTC", "`location` of the periods, as the run has it")
		return o.run
	},
}

// lastRuns is a call of runs.
type lastRuns struct {
	per  time.Duration
	zone string
}

// minLease is any lease that an engine takes: looks make no claim.
const minLease = 30 * time.Second

func (o *lastRuns) run(ctx context.Context, c *call) error {
	if len(c.args) == 0 {
		return usageError("runs: no key; usage: interlock runs KEY...")
	}
	zone, err := run.Zone(o.zone)
	if err != nil {
		return usageError("runs: %w", err)
	}
	opened, err := c.store(slog.New(slog.NewTextHandler(c.stderr, nil)))
	if err != nil {
		return err
	}
	defer opened.close()
	records, err := run.NewRecords(opened.Store, minLease, zone)
	if err != nil {
		return usageError("runs: %w", err)
	}
	defer func() { _ = records.Close(ctx) }()
	heads := []string{"KEY", "BEGAN", "TOOK", "STATUS", "HOST"}
	if o.per > 0 {
		heads = append(heads, "THIS PERIOD")
	}
	out, missing := c.list(heads...), false
	for _, arg := range c.args {
		key, err := display.Parse(arg)
		if err != nil {
			return out.end(usageError("runs: %w", err))
		}
		last, ran, err := records.Last(ctx, key)
		if err != nil {
			return out.end(err)
		}
		row, value := []string{display.Text(key), "-", "-", "-", "-"}, show.Run{Key: display.Text(key)}
		if ran {
			began, ended := last.Began.UTC(), last.Ended.UTC()
			row = append(row[:1], began.Format(time.RFC3339), span(ended.Sub(began)), strconv.Itoa(last.Status), display.Text(last.Host))
			value = show.Run{Key: value.Key, Began: &began, Ended: &ended, Status: last.Status, Host: display.Text(last.Host), PID: last.PID, Token: last.Token}
		}
		if o.per > 0 {
			stage, err := records.Done(ctx, key, o.per)
			if err != nil {
				return out.end(err)
			}
			value.Period = periods[stage]
			row = append(row, value.Period)
			ran = stage == idempotency.StageFinished
		} else {
			ran = ran && last.Status == 0
		}
		missing = missing || !ran
		if err := out.add(value, row...); err != nil {
			return err
		}
	}
	err = out.end(nil)
	if err == nil && missing {
		err = &exitError{code: exitNo}
	}
	return err
}

// periods are the words for the stages of a run.
var periods = map[idempotency.Stage]string{
	idempotency.StageFree: "missing", idempotency.StageInProgress: "running", idempotency.StageFinished: "done", idempotency.StageUnknown: "unknown",
}
