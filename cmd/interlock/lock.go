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
	short: "show all that Redis has of one lock",
	long: `Shows one lock: its holders, with the token and the lease of each and whether its
process still renews, the processes that wait in the order of their turns, and the
fence. Exit code 3 if the lock is free. HASH, of 16 digits as logs and traces have it
in place of the key, finds the key of a lock that is held. ` + quoting,
	examples: [][2]string{
		{"inspect account/42", "the lock of an account"},
		{"inspect 9c7e2e1ad8fb1ac0", "the lock that a log names by key_hash"},
		{"inspect -json account/42 | jq .holders[].token", "the tokens of its holders"},
	},
	setup: func(*flag.FlagSet) action { return inspect },
}

func inspect(ctx context.Context, c *call) error {
	if err := c.want(1, 1); err != nil {
		return err
	}
	key, err := c.key()
	if err != nil {
		return err
	}
	f, done, err := c.fleet()
	if err != nil {
		return err
	}
	defer done()
	l, err := f.Inspect(ctx, key)
	if err == nil && l.Held == 0 && isHash(key) {
		l, err = findHash(ctx, f, key, l)
	}
	if err != nil {
		return err
	}
	if c.json {
		err = show.JSON(c.stdout, show.LockOf(l))
	} else {
		err = printLock(c.stdout, &l)
	}
	if err == nil && l.Held == 0 {
		err = &exitError{code: exitNo}
	}
	return err
}

// hash is how logs, traces and the debug page name a key (core.Hashed).
var hash = regexp.MustCompile(`^[0-9a-f]{16}$`)

func isHash(key string) bool { return hash.MatchString(key) }

// findHash finds the lock that is held, and that logs name by a hash; or else returns none.
func findHash(ctx context.Context, f *fleet.Fleet, hash string, none fleet.Lock) (fleet.Lock, error) {
	for l, err := range f.Locks(ctx, "") {
		if err != nil {
			return none, err
		}
		if core.Hashed(l.Key).Hash() == hash {
			return f.Inspect(ctx, l.Key)
		}
	}
	return none, nil
}

// printLock prints one lock.
func printLock(w io.Writer, l *fleet.Lock) error {
	t := newTable(w)
	t.row("key", display.Text(l.Key))
	t.row("hash", core.Hashed(l.Key).Hash())
	if l.Held == 0 {
		t.row("free", "no process holds it")
	} else {
		t.row("kind", l.Kind)
	}
	if l.Fence != 0 {
		t.row("fence", strconv.FormatInt(l.Fence, 10))
	}
	for _, h := range l.Holders {
		t.row("held by", details(h.Locker))
		t.row("  owner", display.Text(h.Owner))
		t.row("  token", strconv.FormatInt(h.Token, 10))
		held := age(h)
		if !h.Since.IsZero() {
			held += ", since " + h.Since.UTC().Format(time.RFC3339)
		}
		t.row("  held for", held)
		t.row("  lease left", left(h.Left))
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
		t.row(fmt.Sprintf("waits %d", i+1), name)
	}
	return t.flush()
}

// details names the process of a locker with its version.
func details(l fleet.Locker) string {
	name := process(l)
	if !l.Listed {
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
	f, done, err := c.fleet()
	if err != nil {
		return err
	}
	defer done()
	t := newTable(c.stdout, "HOST", "PID", "SERVICE", "VERSION", "STARTED", "HEARD OF", "LOCKER")
	for l, err := range f.Lockers(ctx) {
		switch {
		case err != nil:
			return err
		case c.json:
			if err := show.JSON(c.stdout, show.LockerOf(l)); err != nil {
				return err
			}
		default:
			t.row(display.Text(l.Host), strconv.Itoa(l.PID), display.Text(l.Service), display.Text(l.Version),
				l.Started.UTC().Format(time.RFC3339), span(l.Quiet)+" ago", display.Text(l.ID))
		}
	}
	if c.json {
		return nil
	}
	return t.flush()
}

var waitCommand = &command{
	name:  "wait",
	args:  "KEY",
	short: "wait until a lock is free",
	long: `Returns when no process holds the lock. It takes nothing: another process may have the
lock at that moment. Exit code 75 if it is held when -timeout ends. ` + quoting,
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
	if err := c.want(1, 1); err != nil {
		return err
	}
	key, err := c.key()
	if err != nil {
		return err
	}
	if timeout < 0 {
		return usageError("wait: -timeout %v: must not be negative", timeout)
	}
	f, done, err := c.fleet()
	if err != nil {
		return err
	}
	defer done()
	var held error
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
			result, held = "held", &exitError{exitHeld, fmt.Errorf("%s is still held after %v", display.Text(key), timeout)}
		}
	}
	if c.json {
		return errors.Join(show.JSON(c.stdout, show.Result{Key: display.Text(key), Result: result}), held)
	}
	return held
}

var releaseCommand = &command{
	brief: true,
	name:  "release",
	args:  "KEY",
	short: "take a lock from a holder, by the token of its grant",
	long: `Releases one grant of a lock: the grant with the token, and no other. For a holder of
a shared lock or of a permit that is its place alone. The processes that wait get
their turns, and tokens still grow. Without -token it changes nothing, shows the tokens
there are, and ends with exit code 2. Exit code 3 if no holder has the token.

A process that holds the lock with the option core.Attentive is told about the loss at
once, and the context of its work ends within milliseconds. Any other process is told at its
next renewal, with the default lease within 10 s. Until then it works on, beside the next
holder. Release the lock of a process that is known to be dead or stuck, or whose writes are
fenced. With -now nothing is released unless the holder is told at once: exit code 3. What
was released is logged on standard error. ` + quoting,
	examples: [][2]string{
		{"release account/42", "show the token to give"},
		{"release account/42 -token 1790000000000000", "release that grant"},
		{"release -now account/42 -token 1790000000000000", "only if its work ends at once"},
	},
	setup: func(fs *flag.FlagSet) action {
		token := fs.Int64("token", 0, "`number` of the grant to release, as ls and inspect show it")
		now := fs.Bool("now", false, "release nothing unless the holder is told at once")
		return func(ctx context.Context, c *call) error { return release(ctx, c, *token, *now) }
	},
}

func release(ctx context.Context, c *call, token int64, now bool) error {
	if err := c.want(1, 1); err != nil {
		return err
	}
	key, err := c.key()
	if err != nil {
		return err
	}
	f, done, err := c.fleet()
	if err != nil {
		return err
	}
	defer done()
	if token == 0 {
		return c.offer(ctx, f, key, &exitError{exitUsage, errors.New("release: -token is missing: it says which grant is meant")})
	}
	if now {
		if err := c.attentive(ctx, f, key, token); err != nil {
			return err
		}
	}
	h, err := f.Release(ctx, key, token)
	if errors.Is(err, fleet.ErrNoGrant) {
		return c.offer(ctx, f, key, &exitError{exitNo, fmt.Errorf("no holder of %s has the token %d", display.Text(key), token)})
	}
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("it is not known whether the grant was released: %w", err)
	}
	if err != nil {
		return err
	}
	if c.json {
		holder := show.HolderOf(h)
		return show.JSON(c.stdout, show.Result{Key: display.Text(key), Result: "released", Holder: &holder})
	}
	when := "when it renews"
	if h.Attentive {
		when = "at once"
	}
	_, err = fmt.Fprintf(c.stdout, "released %s: token %d, held for %s by %s, which is told %s\n",
		display.Text(key), token, age(h), details(h.Locker), when)
	return err
}

// attentive returns an error if the holder with a token would not be told at once that its lock
// is released.
func (c *call) attentive(ctx context.Context, f *fleet.Fleet, key string, token int64) error {
	l, err := f.Inspect(ctx, key)
	if err != nil {
		return err
	}
	for _, h := range l.Holders {
		if h.Token == token && !h.Attentive {
			return &exitError{exitNo, fmt.Errorf("%s is not released: %s would work on until it renews; leave out -now",
				display.Text(key), details(h.Locker))}
		}
	}
	return nil
}

// offer shows the tokens that can be given, and returns why nothing was done.
func (c *call) offer(ctx context.Context, f *fleet.Fleet, key string, why error) error {
	l, err := f.Inspect(ctx, key)
	if err != nil {
		return err
	}
	if c.json {
		return errors.Join(show.JSON(c.stdout, show.LockOf(l)), why)
	}
	if l.Held == 0 {
		_, _ = fmt.Fprintf(c.stderr, "%s is free\n", display.Text(key))
	}
	t := newTable(c.stderr)
	for _, h := range l.Holders {
		t.row("interlock release -token "+strconv.FormatInt(h.Token, 10)+" "+shellQuoted(display.Text(key)),
			"# "+details(h.Locker)+", held for "+age(h))
	}
	return errors.Join(t.flush(), why)
}
