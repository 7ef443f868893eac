package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-go/interlock/cmd/interlock/internal/show"
	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/internal/display"
)

var lsCommand = &command{
	name:  "ls",
	args:  "[PATTERN]",
	short: "list the locks that are held",
	long: `Lists the locks that are held, with the process that holds each (host/pid/service),
the token of its grant, what remains of its lease, how long it has had the lock, and
how many processes wait. Of several holders it names the holder that has held longest.
Of a lock that has no holder, and is kept for processes that wait, it names these.
PATTERN chooses keys: * stands for any text, ? for one byte.

It reads with SCAN, not faster than -rate, so that other clients of Redis do not
notice. The list is in no order, and begins at once; with -sort and with -watch it is
complete before it is shown, and keeps no more than -limit locks. With -json each line
is the object of one lock.`,
	examples: [][2]string{
		{"ls", "all locks"},
		{"ls -sort waiters 'account/*'", "the locks of accounts, the most wanted first"},
		{"ls -watch -sort age -limit 20", "the oldest twenty, refreshed until Ctrl-C"},
		{"ls -json | jq 'select(.holders[0].locker.renews == \"no\") | .key'", "locks of processes that have not been heard of for 30 s"},
	},
	setup: func(fs *flag.FlagSet) action {
		var o listing
		fs.StringVar(&o.sort, "sort", "", "`order`: waiters, age or key")
		fs.BoolVar(&o.watch, "watch", false, "refresh the list in place until it is interrupted")
		durationVar(fs, &o.every, "every", 2*time.Second, "`pause` between two refreshes")
		fs.BoolVar(&o.wide, "wide", false, "show long keys and holders in full, which a terminal gets cut")
		fs.IntVar(&o.limit, "limit", 0, "show at most this `number` of locks; 0 is all, with -sort 1000, with -watch as many as the terminal has lines for")
		fs.IntVar(&o.rate, "rate", 20_000, "look at no more than this `number` of keys a second, at least 100")
		return o.run
	},
}

// listing is a call of ls.
type listing struct {
	sort        string
	watch, wide bool
	every       time.Duration
	limit, rate int
	limited     bool // by -limit
}

// orders are the values of -sort, first things first.
var orders = map[string]func(a, b *fleet.Lock) int{
	"waiters": func(a, b *fleet.Lock) int { return cmp.Compare(len(b.Waiters), len(a.Waiters)) },
	"age": func(a, b *fleet.Lock) int {
		x, y := a.Oldest(), b.Oldest()
		if x.IsZero() || y.IsZero() { // unknown ones are last
			return -cmp.Compare(x.Unix(), y.Unix())
		}
		return x.Compare(y)
	},
	"key": func(a, b *fleet.Lock) int { return cmp.Compare(a.Key, b.Key) },
}

func (o *listing) run(ctx context.Context, c *call) error {
	if err := c.want(0, 1); err != nil {
		return err
	}
	pattern := ""
	if len(c.args) == 1 {
		var err error
		if pattern, err = c.key(); err != nil {
			return err
		}
	}
	if o.sort == "" && o.watch {
		o.sort = "key"
	}
	o.limited = o.limit > 0
	switch {
	case o.sort != "" && orders[o.sort] == nil:
		return usageError("ls: -sort %q: must be waiters, age or key", o.sort)
	case o.limit < 0:
		return usageError("ls: -limit %d: must not be negative", o.limit)
	case o.watch && c.json:
		return usageError("ls: -watch and -json together: call ls -json again and again instead")
	case o.watch && o.every <= 0:
		return usageError("ls: -every %v: must be positive", o.every)
	case o.limit == 0 && o.watch:
		o.limit = 40 // where there is no terminal
	case o.limit == 0 && o.sort != "":
		o.limit = 1000
	}
	f, err := c.fleet(fleet.Rate(o.rate))
	if err != nil {
		return err
	}
	switch {
	case o.watch:
		return o.refresh(ctx, c, f, pattern)
	case o.sort != "":
		locks, more, err := o.collect(ctx, c, f, pattern)
		if err != nil && !errors.Is(err, fleet.ErrIncomplete) {
			return err
		}
		return errors.Join(o.print(c, locks, more), err)
	}
	return o.stream(ctx, f, pattern, c)
}

// columns are the heads of the list.
var columns = []string{"KEY", "HOLDER", "TOKEN", "LEASE LEFT", "HELD FOR", "WAITERS", "HASH"}

// stream prints the locks as they come.
func (o *listing) stream(ctx context.Context, f *fleet.Fleet, pattern string, c *call) error {
	out, place := c.list(columns...), terminal(c.stdout)
	for l, err := range f.Locks(ctx, pattern) {
		if err != nil {
			return out.end(err)
		}
		if o.limit > 0 && out.rows == o.limit {
			_, _ = fmt.Fprintf(c.stderr, "interlock: there are more than %d\n", o.limit)
			break
		}
		if err := out.add(show.LockOf(l), o.rowOf(&l, place)...); err != nil {
			return err
		}
	}
	return out.end(nil)
}

// collect returns the first locks in the order, and whether there are more.
func (o *listing) collect(ctx context.Context, c *call, f *fleet.Fleet, pattern string) (all []fleet.Lock, more bool, err error) {
	order := func(a, b fleet.Lock) int { return cmp.Or(orders[o.sort](&a, &b), cmp.Compare(a.Key, b.Key)) }
	keep := func() {
		slices.SortFunc(all, order)
		if len(all) > o.limit {
			more = true
			clear(all[o.limit:])
			all = all[:o.limit]
		}
	}
	var failed error
	read, progress := 0, newProgress(c.stderr)
	defer progress.end()
	for l, err := range f.Locks(ctx, pattern) {
		if errors.Is(err, fleet.ErrIncomplete) {
			failed = err
			break
		}
		if err != nil {
			return nil, false, err
		}
		read++
		progress.read(read)
		if all = append(all, l); len(all) >= 2*o.limit+100 {
			keep()
		}
	}
	slices.SortFunc(all, order)
	all = slices.CompactFunc(all, func(a, b fleet.Lock) bool { return a.Key == b.Key }) // SCAN may return one twice
	keep()
	return all, more, failed
}

// print prints collected locks.
func (o *listing) print(c *call, locks []fleet.Lock, more bool) error {
	out, place := c.list(columns...), terminal(c.stdout)
	for _, l := range locks {
		if err := out.add(show.LockOf(l), o.rowOf(&l, place)...); err != nil {
			return err
		}
	}
	if more {
		_, _ = fmt.Fprintf(c.stderr, "interlock: there are more than %d\n", o.limit)
	}
	return out.end(nil)
}

// refresh shows the list again and again. On a terminal it is shown in place.
func (o *listing) refresh(ctx context.Context, c *call, f *fleet.Fleet, pattern string) error {
	place := terminal(c.stdout)
	var last string
	for {
		screen := sizeOf(c.stdout)
		if place && !o.limited {
			o.limit = max(1, screen.rows-watchFrame)
		}
		locks, more, err := o.collect(ctx, c, f, pattern)
		if ctx.Err() != nil {
			return nil // which is how it ends
		}
		// An error passes, as a failover does: the list of before stays, with the error below.
		if err == nil || errors.Is(err, fleet.ErrIncomplete) {
			last = o.page(locks, more, place)
		} else if last == "" {
			return err // the first list: the connection may be wrong
		}
		text := last
		if err != nil {
			text += fmt.Sprintf("%s  %s\n", time.Now().Format(time.TimeOnly), display.Message(inWords(err)))
		}
		if place {
			text = screen.inPlace(text)
		}
		if _, err := io.WriteString(c.stdout, text); err != nil {
			return err
		}
		select {
		case <-time.After(o.every):
		case <-ctx.Done():
			return nil
		}
	}
}

// page is the list, and a line about it.
func (o *listing) page(locks []fleet.Lock, more, place bool) string {
	var text strings.Builder
	table := newTable(&text, columns...)
	for i := range locks {
		table.row(o.rowOf(&locks[i], place)...)
	}
	_ = table.flush()
	note := ""
	if more {
		note = fmt.Sprintf(", of more than %d", o.limit)
	}
	_, _ = fmt.Fprintf(&text, "\n%s  %d locks%s\n", time.Now().Format(time.TimeOnly), len(locks), note)
	return text.String()
}

// terminal reports whether output is shown at once.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// The terminal's form of a key and of a holder.
const (
	keyWidth    = 60
	holderWidth = 40
	// watchFrame are the lines of -watch that are no locks: the header, the lines below the list,
	// an error, and the place of the cursor.
	watchFrame = 5
)

// cut shortens a text for a terminal. A cut key cannot be typed in another command.
func cut(text string, width int) string {
	if runes := []rune(text); len(runes) > width {
		return string(runes[:width-1]) + "…"
	}
	return text
}

// rowOf returns the columns of a lock.
func (o *listing) rowOf(l *fleet.Lock, short bool) []string {
	token, held, remains := "-", "-", span(l.Kept)
	holder := "kept for " + keptFor(l)
	first := fleet.Holder{}
	for i, h := range l.Holders {
		if i == 0 || h.Age > first.Age {
			first = h
		}
	}
	if l.Kept == 0 {
		holder, token = process(first.Locker), strconv.FormatInt(first.Token, 10)
		if first.HandedOver {
			holder = "handed over by " + holder
		}
		held, remains = age(first), leaseLeft(first)
	}
	if l.Held > 1 {
		holder += fmt.Sprintf(" and %d more", l.Held-1)
	}
	key := display.Text(l.Key)
	if short && !o.wide {
		key, holder = cut(key, keyWidth), cut(holder, holderWidth)
	}
	return []string{
		key, holder, token, remains, held, strconv.Itoa(len(l.Waiters)),
		core.Hashed(l.Key).Hash(),
	}
}

// process names the process of a locker: host/pid/service, host/pid, or its id if that is all.
func process(l fleet.Locker) string {
	switch {
	case !l.Listed && l.Host != "":
		return display.Text(l.Host) + "/" + strconv.Itoa(l.PID)
	case !l.Listed && len(l.ID) > 8:
		return "locker " + display.Text(l.ID[:8])
	case !l.Listed:
		return "locker " + display.Text(l.ID)
	}
	name := display.Text(l.Host) + "/" + strconv.Itoa(l.PID)
	if l.Service != "" {
		name += "/" + display.Text(l.Service)
	}
	return name
}

// left shows the remaining lease, and age the time since the grant.
func left(d time.Duration) string {
	if d < 0 {
		return "never ends"
	}
	return span(d)
}

// leaseLeft shows the remaining lease of a holder, or the whole one where the store has no clock.
func leaseLeft(h fleet.Holder) string {
	if h.Whole {
		return "at most " + span(h.Left)
	}
	return left(h.Left)
}

func age(h fleet.Holder) string {
	if h.Since.IsZero() {
		return "unknown"
	}
	return span(h.Age)
}

// span rounds a time for a reader.
func span(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
