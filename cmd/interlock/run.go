package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/interlock-go/interlock/cmd/interlock/internal/run"
	"github.com/interlock-go/interlock/cmd/interlock/internal/show"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/display"
)

var runCommand = &command{
	name:  "run",
	args:  "KEY [--] COMMAND [ARGS...]",
	short: "run a command while holding a lock",
	long: `Runs COMMAND while this process holds the lock KEY. While another process holds it,
run waits. It keeps two runs apart: a host that comes when the first run has ended runs COMMAND
again, unless -per makes them one. COMMAND has INTERLOCK_KEY and INTERLOCK_TOKEN (the fencing token) in its
environment, and a process group of its own. "--" is needed before a key or a command
that begins with a dash. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1
and SIGUSR2 are passed on to the group.

If the lock is lost, or cannot be renewed for so long that it is about to be lost, the
group gets SIGTERM, and SIGKILL after the grace: COMMAND has ended before another
process can get the lock. The more grace, the fewer failed renewals it survives.

Exit status: the status of COMMAND, 128+n if signal n ended it, or
   64  the command line is wrong, or COMMAND is run under the same lock already
   69  the server could not be reached; COMMAND was not started
   70  the lock could not be taken for another reason; COMMAND was not started
   75  the lock was not to be had in time; COMMAND was not started (-conflict-status)
   79  the lock was lost, or not renewed in time; COMMAND was ended
  126  COMMAND cannot be run
  127  COMMAND was not found`,
	examples: [][2]string{
		{"run -wait 0 nightly-report -- /usr/local/bin/report --all", "from the cron of several hosts: while one runs it, the others end with 75"},
		{"run -wait 10m -ttl 1m deploy/web -- ./deploy.sh production", "wait for another deploy, and give this one 10s to clean up"},
		{"run -wait 0 -at-least 5m nightly-report -- report", "a host with a clock that is late by less than 5m does not run it again"},
		{"run -wait 0 -per 24h -zone Europe/Berlin nightly-report -- report", "once a day, on the first host that comes and succeeds"},
		{"run -permits 4 thumbnails -- ./thumbnails.sh", "four at once, over all hosts"},
		{"run migrations -shell -- 'migrate up && migrate status'", "a string for the shell"},
	},
	dashed:     true,
	ownSignals: true,
	wrongLine:  run.StatusUsage,
	setup: func(fs *flag.FlagSet) action {
		var flags run.Flags
		flags.Define(fs)
		return func(ctx context.Context, c *call) error { return c.run(ctx, &flags) }
	},
}

// run runs a command under a lock.
func (c *call) run(ctx context.Context, flags *run.Flags) error {
	if len(c.args) == 0 {
		return usageError("run: no key; usage: interlock run KEY [--] COMMAND [ARGS...]")
	}
	key, err := c.key()
	if err != nil {
		return err
	}
	cmd, err := flags.Command(key, c.after)
	if err != nil {
		return usageError("run: %w", err)
	}
	// Output to a stopped terminal must keep nothing waiting.
	voice := run.NewVoice(c.tell)
	slog.SetDefault(voice.Logger())
	var opts []redisstore.Option
	if n, within := flags.Replicas(); n > 0 {
		if c.conn.other() {
			return usageError("run: -replicas is for Redis")
		}
		opts = append(opts, redisstore.Replicas(n, within), redisstore.ReplicatedRenewals())
	}
	store, err := c.store(voice.Logger(), opts...)
	if errors.Is(err, driver.ErrUnavailable) {
		return &exitError{run.StatusUnavailable, err}
	}
	if err != nil {
		return err
	}
	defer store.close() // the process ends
	status := cmd.Run(ctx, store.Store, run.Streams{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Voice: voice,
		Look:  func(ctx context.Context) (run.Held, error) { return look(ctx, store.locks, key) },
	})
	if status != 0 {
		return &exitError{code: status}
	}
	return nil
}

// look reads who holds a lock.
func look(ctx context.Context, f *fleet.Fleet, key string) (held run.Held, err error) {
	l, err := f.Inspect(ctx, key)
	for _, h := range l.Holders {
		held.Tokens = append(held.Tokens, h.Token)
	}
	held.By = holders(&l)
	held.Silent, _ = l.Silent()
	return held, err
}

// holders names the process that holds a lock, and how many others do; empty if none does.
func holders(l *fleet.Lock) string {
	if len(l.Holders) == 0 {
		return ""
	}
	h := l.Holders[0]
	text := details(h.Locker)
	if h.HandedOver {
		text = "the ticket that " + text + " has handed over"
	}
	text += ", for " + age(h)
	if l.Held > 1 {
		text += fmt.Sprintf(", and %d more", l.Held-1)
	}
	return text
}

// lockKey is the key of a command line that was read.
func (c *call) lockKey() string {
	key, _ := c.key()
	return key
}

// tell reports a failure to the user of a command that runs. Standard output is the
// command's.
func (c *call) tell(line string) {
	// There is nothing else to tell an error to.
	if c.json {
		_ = json.NewEncoder(c.stderr).Encode(show.Message{Time: time.Now().UTC(), Key: display.Text(c.lockKey()), Message: display.Message(line)})
		return
	}
	_, _ = fmt.Fprintln(c.stderr, "interlock:", display.Message(line))
}
