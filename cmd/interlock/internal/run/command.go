package run

import (
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core"
)

// The exit statuses of the wrapper. Any other is the command's own: its exit
// status, or 128+n if signal n ended it. 64, 69, 70 and 75 are from sysexits.h.
const (
	// StatusUsage says that the command line was wrong.
	StatusUsage = 64
	// StatusUnavailable says that the servers could not be reached, or did not
	// answer. The command was not started.
	StatusUnavailable = 69
	// StatusInternal says that the lock could not be taken for another reason, such
	// as a key of another program in its place. The command was not started.
	StatusInternal = 70
	// StatusBusy says that the lock was not to be had in time. The command was not
	// started.
	StatusBusy = 75
	// StatusLost says that the lock was lost while the command ran, or could not be
	// renewed for so long that the command had to be ended. It replaces the
	// command's own status.
	StatusLost = 79
	// StatusNotExecutable says that the command was found, and cannot be run.
	StatusNotExecutable = 126
	// StatusNotFound says that the command was not found.
	StatusNotFound = 127
	// statusSignal is added to the number of the signal that ended the command, or
	// the wait for the lock.
	statusSignal = 128
)

const (
	defaultTTL = 30 * time.Second
	// minTTL leaves room for a grace and for a machine that is busy.
	minTTL  = time.Second
	maxTTL  = 31 * 24 * time.Hour
	maxWait = 366 * 24 * time.Hour

	forever = time.Duration(-1)

	// mostKept and leastKept bound the key and the time of a lock that is kept after the command
	// (Lease.HandOver of package core).
	mostKept  = 158
	leastKept = 10 * time.Millisecond
)

// Command is a command to run under a lock. [Flags.Command] makes one.
type Command struct {
	key              string
	wait, ttl, grace time.Duration // a negative wait is for ever
	least            time.Duration // the lock is kept for so long at least
	kind             []core.Option // several commands at once; nil: one
	per              time.Duration // the command succeeds once in each; 0: without a bound
	record           bool          // its last run is kept
	location         *time.Location
	busy             int // the exit status where the lock is not to be had
	args             []string
}

// Flags are the flags of `interlock run`.
type Flags struct {
	wait, ttl, grace time.Duration // negative: not given
	least, per       time.Duration
	shell, shared    bool
	record           bool
	zone             string
	replicas         int
	permits, busy    int
}

// Define defines the flags.
func (f *Flags) Define(fs *flag.FlagSet) {
	f.wait, f.ttl, f.grace = forever, defaultTTL, -1
	fs.Func("wait", "how long to wait for the lock, and for a server that cannot be reached: a `duration` such as 30s; 0 tries once (default: for ever, for a server a minute)",
		func(s string) error { return duration(s, 0, maxWait, &f.wait) })
	fs.Func("ttl", "lease of the lock, a `duration` from 1s, renewed while COMMAND runs: how long the lock outlives a machine that died (default 30s)",
		func(s string) error { return duration(s, minTTL, maxTTL, &f.ttl) })
	fs.Func("grace", "`duration` from SIGTERM to SIGKILL when the lock is lost, half of the ttl at most (default: a sixth of the ttl)",
		func(s string) error { return duration(s, 0, maxTTL, &f.grace) })
	fs.Func("at-least", "keep the lock for this `duration` from its grant at least, also after COMMAND has ended, for hosts with clocks that differ (default: release it when COMMAND ends)",
		func(s string) error { return duration(s, 0, maxTTL, &f.least) })
	fs.Func("per", "run COMMAND until it succeeds once in each `period`, over all hosts, such as 24h: a host that comes later does not run it again",
		func(s string) error { return duration(s, time.Second, maxWait, &f.per) })
	fs.StringVar(&f.zone, "zone", "UTC", "`location` in which periods of whole days begin at midnight, such as Europe/Berlin, or Local")
	fs.BoolVar(&f.record, "record", false, "keep the last run for interlock runs; -per does")
	fs.IntVar(&f.permits, "permits", 0, "let this `number` of commands with the key run at once, over all hosts (default: one)")
	fs.BoolVar(&f.shared, "shared", false, "share the lock with other commands that have -shared, and exclude those without")
	fs.IntVar(&f.busy, "conflict-status", StatusBusy, "exit `status` if the lock was not to be had in time, from 0 to 255")
	fs.IntVar(&f.replicas, "replicas", 0, "take the lock only if this `number` of replicas have it within half a second, so that a failover to them does not lose it")
	fs.BoolVar(&f.shell, "shell", false, "COMMAND is one string for /bin/sh -c")
}

// Replicas returns how many replicas have to have the lock, and within which time: less than a single
// try of a lock waits, which would end without the answer.
func (f *Flags) Replicas() (n int, within time.Duration) { return f.replicas, time.Second / 2 }

// Command returns the command to run. Its error names the mistake and the accepted forms.
func (f *Flags) Command(key string, command []string) (*Command, error) {
	c := &Command{
		wait: f.wait, ttl: f.ttl, grace: f.grace, least: f.least, per: f.per, record: f.record, busy: f.busy, args: command,
	}
	zone, err := Zone(f.zone)
	if err != nil {
		return nil, err
	}
	c.location = zone
	if c.grace < 0 {
		c.grace = c.ttl / 6
	}
	switch {
	case key == "":
		return nil, errors.New("the key is empty: all commands would share one lock")
	case strings.ContainsRune(key, 0):
		return nil, errors.New("the key has a zero byte, which no environment can hold")
	case len(command) == 0:
		return nil, errors.New("no command after the key; usage: interlock run KEY [--] COMMAND [ARGS...]")
	case f.shell && len(command) != 1:
		return nil, fmt.Errorf("-shell takes one string, and got %d: quote the command", len(command))
	case f.replicas < 0:
		return nil, fmt.Errorf("-replicas %d: must not be negative", f.replicas)
	case c.per > 0 && (f.permits > 0 || f.shared):
		return nil, errors.New("-per is for a command that runs alone: leave out -permits and -shared")
	case c.location != nil && c.per%(24*time.Hour) != 0:
		return nil, fmt.Errorf("-zone is for periods of whole days, and -per is %v", c.per)
	case f.permits < 0:
		return nil, fmt.Errorf("-permits %d: at least 1 is accepted", f.permits)
	case f.shared && f.permits > 0:
		return nil, errors.New("-shared and -permits are two kinds of locks: give one of them")
	case f.shared && f.least > 0:
		return nil, errors.New("-at-least cannot keep a shared lock: give it to exclusive commands, or with -permits")
	case f.least > 0 && len(key) > mostKept:
		return nil, fmt.Errorf("-at-least takes a key of at most %d bytes, and this has %d", mostKept, len(key))
	case f.busy < 0 || f.busy > 255:
		return nil, fmt.Errorf("-conflict-status %d: must be from 0 to 255", f.busy)
	case c.grace > c.ttl/2:
		return nil, fmt.Errorf("-grace %v: at most half of the ttl, %v, or a renewal that fails is never tried again", c.grace, c.ttl/2)
	}
	switch {
	case f.shared:
		c.kind = []core.Option{core.Shared()}
	case f.permits > 0:
		c.kind = []core.Option{core.Permits(f.permits)}
	}
	if c.key = key; f.shell {
		c.args = append(shellArgs(), command[0])
	}
	return c, nil
}

// Zone returns the location of a name; nil for UTC.
func Zone(name string) (*time.Location, error) {
	if name == "UTC" {
		return nil, nil //nolint:nilnil // UTC is no error
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("-zone %q: a name of the time zone database is accepted, such as Europe/Berlin: %w", name, err)
	}
	return zone, nil
}

// ParseDuration reads a duration, such as 500ms, 30s or 5m. A number alone is of seconds.
func ParseDuration(s string) (time.Duration, error) {
	if n, err := strconv.ParseUint(s, 10, 31); err == nil {
		return time.Duration(n) * time.Second, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, errors.New("a duration such as 500ms, 30s or 5m, or a number of seconds, is accepted")
	}
	return d, nil
}

// duration reads a duration between two.
func duration(s string, least, most time.Duration, d *time.Duration) error {
	v, err := ParseDuration(s)
	if err != nil {
		return err
	}
	if v < least || v > most {
		return fmt.Errorf("at least %v and at most %v are accepted", least, most)
	}
	*d = v
	return nil
}

// margin is how long before the deadline of the lease SIGKILL goes out.
func (c *Command) margin() time.Duration {
	return min(max(c.ttl/20, 50*time.Millisecond), 2*time.Second)
}
