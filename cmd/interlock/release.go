package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strconv"

	"github.com/interlock-go/interlock/cmd/interlock/internal/show"
	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/internal/display"
)

var releaseCommand = &command{
	brief: true,
	name:  "release",
	args:  "KEY",
	short: "take a lock from a holder, by the token of its grant",
	long: `Releases one grant of a lock: the grant with the token, and no other. For a holder of
a shared lock or of a permit that is its place alone. The processes that wait get
their turns, and tokens still grow. Without -token it changes nothing, shows the tokens
there are, and ends with exit code 2. Exit code 3 if no holder has the token.

A lock that a release has kept for the processes whose turn it is has no holder and no token.
-kept frees it, and all processes that wait ask for it. Exit code 3 if it is not kept.

A process that holds the lock with the option core.Attentive is told about the loss at
once, and the context of its work ends within milliseconds. Any other process is told at its
next renewal, with the default lease within 10 s. Until then it works on, beside the next
holder. Release the lock of a process that is known to be dead or stuck, or whose writes are
fenced. With -now nothing is released unless the holder is told at once: exit code 3. What
was released is logged on standard error. ` + quoting,
	examples: [][2]string{
		{"release account/42", "show the token to give"},
		{"release account/42 -token 1790000000000000", "release that grant"},
		{"release -kept account/42", "free it, where it is kept for processes that have died"},
		{"release -now account/42 -token 1790000000000000", "only if its work ends at once"},
	},
	setup: func(fs *flag.FlagSet) action {
		token := fs.Int64("token", 0, "`number` of the grant to release, as ls and inspect show it")
		now := fs.Bool("now", false, "release nothing unless the holder is told at once")
		kept := fs.Bool("kept", false, "free a lock without a holder that is kept for waiting processes")
		return func(ctx context.Context, c *call) error {
			if *kept {
				return releaseKept(ctx, c, *token != 0 || *now)
			}
			return release(ctx, c, *token, *now)
		}
	},
}

// releaseKept frees a lock that is kept. mixed says that there are flags about a holder.
func releaseKept(ctx context.Context, c *call, mixed bool) error {
	key, err := c.onlyKey()
	if err != nil {
		return err
	}
	if mixed {
		return usageError("release: -kept is for a lock without a holder: leave out -token and -now")
	}
	f, err := c.fleet()
	if err != nil {
		return err
	}
	l, err := f.ReleaseKept(ctx, key)
	switch {
	case errors.Is(err, fleet.ErrNotKept):
		return c.offer(ctx, f, key, &exitError{exitNo, fmt.Errorf("%s is not kept for waiting processes", display.Text(key))})
	case err != nil && ctx.Err() != nil || errors.Is(err, fleet.ErrOutcomeUnknown):
		return &unknownError{"the lock was freed", err}
	case err != nil:
		return err
	case c.json:
		return show.JSON(c.stdout, show.Result{Key: display.Text(key), Result: "freed"})
	}
	_, err = fmt.Fprintf(c.stdout, "freed %s: it was kept for %s\n", display.Text(key), keptFor(&l))
	return err
}

func release(ctx context.Context, c *call, token int64, now bool) error {
	key, err := c.onlyKey()
	if err != nil {
		return err
	}
	f, err := c.fleet()
	if err != nil {
		return err
	}
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
	if err != nil && ctx.Err() != nil || errors.Is(err, fleet.ErrOutcomeUnknown) {
		return &unknownError{"the grant was released", err}
	}
	if err != nil {
		return err
	}
	if c.json {
		holder := show.HolderOf(h)
		return show.JSON(c.stdout, show.Result{Key: display.Text(key), Result: "released", Holder: &holder})
	}
	if h.HandedOver {
		_, err = fmt.Fprintf(c.stdout, "released %s: token %d, handed over %s ago by %s; its ticket is void\n",
			display.Text(key), token, age(h), details(h.Locker))
		return err
	}
	when := "when it renews"
	if h.Attentive {
		when = "at once"
	}
	_, err = fmt.Fprintf(c.stdout, "released %s: token %d, held for %s by %s, which is told %s\n",
		display.Text(key), token, age(h), details(h.Locker), when)
	return err
}

// attentive returns an error if the holder with a token would not learn at once that its lock
// is released.
func (c *call) attentive(ctx context.Context, f *fleet.Fleet, key string, token int64) error {
	l, err := f.Inspect(ctx, key)
	if err != nil {
		return err
	}
	for _, h := range l.Holders {
		if h.Token == token && !h.Attentive && !h.HandedOver {
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
	if l.Free() {
		_, _ = fmt.Fprintf(c.stderr, "%s is free\n", display.Text(key))
	}
	t := newTable(c.stderr)
	if l.Kept > 0 {
		t.row("interlock release -kept "+shellQuoted(display.Text(key)), "# kept for "+keptFor(&l))
	}
	for _, h := range l.Holders {
		t.row("interlock release -token "+strconv.FormatInt(h.Token, 10)+" "+shellQuoted(display.Text(key)),
			"# "+details(h.Locker)+", held for "+age(h))
	}
	return errors.Join(t.flush(), why)
}

// keptFor names the process for which a lock is kept first, and says how many follow.
func keptFor(l *fleet.Lock) string {
	name, more := "", -1
	for i := range l.Waiters {
		if !l.Waiters[i].Kept {
			continue
		}
		if more++; more == 0 {
			name = process(l.Waiters[i].Locker)
		}
	}
	switch {
	case more < 0:
		return "processes that wait"
	case more > 0:
		name += fmt.Sprintf(" and %d more", more)
	}
	return name
}
