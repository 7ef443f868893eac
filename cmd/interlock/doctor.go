package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/cmd/interlock/internal/show"
	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/internal/display"
)

var doctorCommand = &command{
	brief: true,
	name:  "doctor",
	short: "look for what makes locks unsafe",
	long: `Looks at the servers: versions, eviction policy, persistence and replication as
Store.Check of package redisstore judges them, the difference between the clocks, the
time of a round trip, and the rights that the Redis user lacks. Then it takes a lock
with a random key on each master, and gives it back: a server may answer and refuse all
locks, as with full memory. On PostgreSQL it takes one lock, and
gives it back. Exit code 3 if something is unsafe or missing.

A note does not count as unsafe: it is not known whether the services ask for
replicas (redisstore.Replicas), or the user may not read a setting.`,
	examples: [][2]string{
		{"doctor", "with the rights of this connection"},
		{"doctor -rights-of payments", "with the rights of another Redis user, whom a service connects as"},
	},
	setup: func(fs *flag.FlagSet) action {
		user := fs.String("rights-of", "", "Redis `user` whose rights are looked at; if empty, the user of the connection")
		return func(ctx context.Context, c *call) error { return doctor(ctx, c, *user) }
	},
}

func doctor(ctx context.Context, c *call, user string) error {
	if err := c.want(0, 0); err != nil {
		return err
	}
	if user != "" && c.conn.other() {
		return usageError("doctor: -rights-of is for Redis; on %s, connect as that user", c.conn.server())
	}
	f, err := c.fleet()
	if err != nil {
		return err
	}
	r, err := f.Check(ctx, user)
	if err != nil {
		return err
	}
	if c.rdb != nil && !c.conn.cluster {
		if info, err := c.rdb.InfoMap(ctx, "cluster").Result(); err == nil && info["Cluster"]["cluster_enabled"] == "1" {
			r.Unsafe = append(r.Unsafe, "this server is a node of a Cluster, and the others were not looked at: give -cluster")
		}
	}
	if c.json {
		err = show.JSON(c.stdout, show.ReportOf(r))
	} else {
		err = c.printReport(&r)
	}
	if err == nil && !r.Safe() {
		err = &exitError{code: exitNo}
	}
	return err
}

// printReport prints a report.
func (c *call) printReport(r *fleet.Report) error {
	w := c.stdout
	if c.conn.other() {
		if s := r.Servers[0]; s.Err != nil {
			_, _ = fmt.Fprintf(w, "%s: a lock was refused: %s\n", display.Text(c.conn.elsewhere()), display.Text(s.Err.Error()))
		} else {
			_, _ = fmt.Fprintf(w, "%s: a lock was taken, renewed and released; a request took %s, the slowest %s\n",
				display.Text(c.conn.elsewhere()), brief(s.RoundTrip), brief(s.Slowest))
		}
		for _, text := range r.Unsafe {
			_, _ = fmt.Fprintf(w, "unsafe: %s\n", display.Text(text))
		}
		for _, text := range r.Notes {
			_, _ = fmt.Fprintf(w, "note: %s\n", display.Text(text))
		}
		return nil
	}
	t := newTable(w, "SERVER", "ROLE", "VERSION", "EVICTION", "CLOCK", "ROUND TRIP", "SLOWEST")
	for _, s := range r.Servers {
		if s.Err != nil {
			t.row(display.Text(s.Addr), display.Text(s.Err.Error()))
			continue
		}
		t.row(display.Text(s.Addr), or(s.Role), or(s.Name+" "+display.Text(s.Version)), or(display.Text(s.Policy)),
			fmt.Sprintf("%+.1fms", float64(s.Ahead)/float64(time.Millisecond)), brief(s.RoundTrip), brief(s.Slowest))
	}
	if err := t.flush(); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(w, "\nclocks: %s apart at most, this machine's included\n", brief(r.ClockSpread))
	for _, text := range r.Unsafe {
		_, _ = fmt.Fprintf(w, "unsafe: %s\n", display.Text(text))
	}
	for _, text := range r.Notes {
		_, _ = fmt.Fprintf(w, "note: %s\n", display.Text(text))
	}
	for _, m := range r.Missing {
		_, _ = fmt.Fprintf(w, "missing right of %s: %s, for %s\n", display.Text(r.User), display.Text(m.Right), m.For)
	}
	if r.Tried {
		_, _ = fmt.Fprintf(w, "rights: %s may not ask for them (ACL DRYRUN); they were found by trying\n", display.Text(r.User))
	}
	if r.Safe() {
		_, _ = fmt.Fprintln(w, "a lock was taken and released on each master; nothing unsafe was found")
	}
	return nil
}

// or shows the unknown parts.
func or(s string) string {
	if s == "" || s == " " {
		return "unknown"
	}
	return s
}

func brief(d time.Duration) string { return d.Round(10 * time.Microsecond).String() }
