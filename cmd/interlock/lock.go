package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"time"

	"github.com/interlock-go/interlock/cmd/interlock/internal/show"
	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/internal/display"
)

// quoting says how keys are written.
const quoting = `A key is written as the tool shows it: a backslash begins an escape (\x1b, \u202e), and
is itself written \\.`

var inspectCommand = &command{
	brief: true,
	name:  "inspect",
	args:  "KEY|HASH",
	short: "show all that the server has of one lock",
	long: `Shows one lock: its holders, with the token and the lease of each and whether its
process still renews, the processes that wait in the order of their turns, and the
fence. A lock without a holder can be kept for the processes whose turn it is. Exit code 3
if the lock is free. HASH, of 16 digits as logs and traces have it
in place of the key, finds the key of a lock that is held. ` + quoting,
	examples: [][2]string{
		{"inspect account/42", "the lock of an account"},
		{"inspect 9c7e2e1ad8fb1ac0", "the lock that a log names by key_hash"},
		{"inspect -json account/42 | jq .holders[].token", "the tokens of its holders"},
	},
	setup: func(*flag.FlagSet) action { return inspect },
}

func inspect(ctx context.Context, c *call) error {
	key, err := c.onlyKey()
	if err != nil {
		return err
	}
	f, err := c.fleet()
	if err != nil {
		return err
	}
	return c.inspect(ctx, f, key)
}

// inspect shows the lock of a key, or of the key that has a hash.
func (c *call) inspect(ctx context.Context, f *fleet.Fleet, key string) error {
	l, err := f.Inspect(ctx, key)
	if err == nil && l.Free() && isHash(key) {
		l, err = c.findHash(ctx, f, key, l)
	}
	if err != nil {
		return err
	}
	if c.json {
		err = show.JSON(c.stdout, show.LockOf(l))
	} else {
		err = printLock(c.stdout, &l)
	}
	if err == nil && l.Free() {
		err = &exitError{code: exitNo}
	}
	return err
}

// hash is how logs, traces and the debug page name a key (core.Hashed).
var hash = regexp.MustCompile(`^[0-9a-f]{16}$`)

func isHash(key string) bool { return hash.MatchString(key) }

// findHash finds the lock that is held or kept, and that logs name by a hash; or else returns none. It reads
// as many keys as ls does, and may take as long.
func (c *call) findHash(ctx context.Context, f *fleet.Fleet, hash string, none fleet.Lock) (fleet.Lock, error) {
	c.patience.lift()
	progress := newProgress(c.stderr)
	defer progress.end()
	read := 0
	for l, err := range f.Locks(ctx, "") {
		if err != nil {
			return none, err
		}
		if core.Hashed(l.Key).Hash() == hash {
			c.patience.begin()
			return f.Inspect(ctx, l.Key)
		}
		read++
		progress.read(read)
	}
	return none, nil
}

// printLock prints one lock.
func printLock(w io.Writer, l *fleet.Lock) error {
	t := newTable(w)
	t.row("key", display.Text(l.Key))
	t.row("hash", core.Hashed(l.Key).Hash())
	switch {
	case l.Free():
		t.row("free", "no process holds it")
	case l.Held == 0:
		t.row("kept", "no process holds it; "+span(l.Kept)+" left for those that wait")
	default:
		t.row("kind", l.Kind)
	}
	if l.Fence != 0 {
		t.row("fence", strconv.FormatInt(l.Fence, 10))
	}
	for _, h := range l.Holders {
		if h.HandedOver {
			t.row("handed over", "kept for "+left(h.Left)+" for the process that has the ticket")
			t.row("  by", details(h.Locker))
		} else {
			t.row("held by", details(h.Locker))
		}
		t.row("  owner", display.Text(h.Owner))
		t.row("  token", strconv.FormatInt(h.Token, 10))
		held := age(h)
		if !h.Since.IsZero() {
			held += ", since " + h.Since.UTC().Format(time.RFC3339)
		}
		t.row("  held for", held)
		if h.HandedOver {
			continue
		}
		t.row("  lease left", leaseLeft(h))
		renews := h.Locker.Renews()
		if h.Locker.Listed {
			renews += ", heard of " + span(h.Locker.Quiet) + " ago"
		}
		t.row("  renews", renews)
	}
	if more := l.Held - len(l.Holders); more > 0 {
		t.row("", fmt.Sprintf("and %d more", more))
	}
	for i, waiter := range l.Waiters {
		name := details(waiter.Locker)
		switch {
		case waiter.Called:
			name += ", called to a place"
		case waiter.Place:
			name += ", for a place"
		}
		if waiter.Kept {
			name += ", the lock is kept for it"
		}
		t.row(fmt.Sprintf("waits %d", i+1), name)
	}
	return t.flush()
}

// details names the process of a locker with its version.
func details(l fleet.Locker) string {
	name := process(l)
	if !l.Listed {
		if l.Host != "" {
			return name
		}
		return name + " (not listed)"
	}
	if l.Version != "" {
		name += " " + display.Text(l.Version)
	}
	return name
}

var lockersCommand = &command{
	name:  "lockers",
	short: "list the processes that take locks",
	long: `Lists the processes that take locks, and use them now or did a minute ago. A process
says once in 20 s that it is there; a process that says so no longer is shown as quiet, and
is gone from the list after a minute. With -json each line is the object of one.`,
	examples: [][2]string{{"lockers", "all of them"}},
	setup:    func(*flag.FlagSet) action { return lockers },
}

func lockers(ctx context.Context, c *call) error {
	if err := c.want(0, 0); err != nil {
		return err
	}
	f, err := c.fleet()
	if err != nil {
		return err
	}
	out := c.list("HOST", "PID", "SERVICE", "VERSION", "STARTED", "HEARD OF", "LOCKER")
	for l, err := range f.Lockers(ctx) {
		if err != nil {
			return out.end(err)
		}
		if err := out.add(show.LockerOf(l), display.Text(l.Host), strconv.Itoa(l.PID), display.Text(l.Service), display.Text(l.Version),
			l.Started.UTC().Format(time.RFC3339), span(l.Quiet)+" ago", display.Text(l.ID)); err != nil {
			return err
		}
	}
	return out.end(nil)
}

var waitCommand = &command{
	name:  "wait",
	args:  "KEY",
	short: "wait until a lock is free",
	long: `Returns when no process holds the lock, and it is kept for none. It takes nothing: another
process may have the lock at that moment. Exit code 75 if it is held or kept when -timeout
ends. ` + quoting,
	examples: [][2]string{{"wait -timeout 5m deploy", "until the deployment has ended, for five minutes at most"}},
	setup: func(fs *flag.FlagSet) action {
		var timeout time.Duration
		durationVar(fs, &timeout, "timeout", 0, "wait no longer than this `time`; 0 is for ever")
		return func(ctx context.Context, c *call) error { return wait(ctx, c, timeout) }
	},
}

var errTimeout = errors.New("the time has ended")

// lastLook is how long wait asks at its end whether the lock is held. Tests change it.
var lastLook = 3 * time.Second

func wait(ctx context.Context, c *call, timeout time.Duration) error {
	key, err := c.onlyKey()
	if err != nil {
		return err
	}
	if timeout < 0 {
		return usageError("wait: -timeout %v: must not be negative", timeout)
	}
	f, err := c.fleet()
	if err != nil {
		return err
	}
	var late error
	outer := ctx
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, errTimeout)
		defer cancel()
	}
	err = f.Wait(ctx, key)
	result := "free"
	if err != nil {
		if context.Cause(ctx) != errTimeout { //nolint:errorlint // the cause is this value
			return err
		}
		// A server that has not answered has not said that the lock is held.
		last, cancel := context.WithTimeout(outer, lastLook)
		defer cancel()
		l, err := f.Inspect(last, key)
		switch {
		case err != nil:
			return fmt.Errorf("it is not known whether %s is held: %w", display.Text(key), err)
		case l.Held > 0:
			result = "held"
		case l.Kept > 0:
			result = "kept"
		}
		if result != "free" {
			text := fmt.Sprintf("%s is still %s after %v", display.Text(key), result, timeout)
			if by := holders(&l); by != "" {
				text += ": by " + by
			}
			late = &exitError{exitHeld, errors.New(text)}
		}
	}
	if c.json {
		return errors.Join(show.JSON(c.stdout, show.Result{Key: display.Text(key), Result: result}), late)
	}
	return late
}
