package ui

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/internal/display"
)

const (
	// manyRows is the maximum number of rows of a table.
	manyRows = 500
	// readWithin bounds the wait of one lock's page for Redis.
	readWithin = 10 * time.Second
)

// encode is the query of an address of the table.
func (q query) encode() string {
	values := url.Values{"sort": {q.sort}}
	if q.pattern != "" {
		values.Set("q", q.pattern)
	}
	return values.Encode()
}

// state is the result of a view's reading.
type state struct {
	problem string // why it was not read, in plain words; else empty

	// Of the table: the first rows, how many locks fit the pattern, and how many of
	// those are waited for.
	rows          []lockRow
	total, waited int
	read          bool // these are from a reading, if not the last one

	// Of the page of one lock, and when it was read.
	lock fleet.Lock
	at   time.Time
}

// readLists reads the tables of all views: for each pattern it goes through the locks
// once.
func (u *UI) readLists(ctx context.Context, views []*view) {
	patterns := map[string][]*view{}
	for _, v := range views {
		patterns[v.pattern] = append(patterns[v.pattern], v)
	}
	for pattern, views := range patterns {
		u.readList(ctx, pattern, views)
	}
}

// readList reads the tables of a pattern, which may have several orders.
func (u *UI) readList(ctx context.Context, pattern string, views []*view) {
	tops := make([]*top, len(views))
	for i, v := range views {
		tops[i] = newTop(v.sort, manyRows)
	}
	waited := map[string]bool{}
	var failed error
	for l, err := range u.config.Fleet.Locks(ctx, globOf(pattern)) {
		if err != nil {
			failed = err
			break
		}
		r := lockRowOf(&l, time.Now())
		if r.Waiters > 0 {
			waited[r.ID] = true
		}
		for _, t := range tops {
			t.add(r)
		}
	}
	for i, v := range views {
		s := &state{}
		partly := errors.Is(failed, fleet.ErrIncomplete) // all rows that were read
		if last, _ := u.lists.look(v); failed != nil && !partly && last != nil {
			*s = *last // out of date is better than nothing
		}
		if s.problem = words(failed); failed == nil || partly {
			tops[i].cut()
			s.rows, s.total, s.waited, s.read = tops[i].rows, tops[i].seen, len(waited), true
		}
		u.lists.publish(ctx, v, s)
	}
}

// readLocks reads the locks with open pages.
func (u *UI) readLocks(ctx context.Context, views []*view) {
	for _, v := range views {
		s := u.readLock(ctx, v.key)
		if last, _ := u.locks.look(v); s.problem != "" && last != nil {
			s.lock, s.at = last.lock, last.at
		}
		u.locks.publish(ctx, v, s)
	}
}

// readLock reads one lock.
func (u *UI) readLock(ctx context.Context, key string) *state {
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	l, err := u.config.Fleet.Inspect(ctx, key)
	return &state{problem: words(err), lock: l, at: time.Now()}
}

// visible makes a search of visible characters: an unprintable character becomes an asterisk.
func visible(search string) string {
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '*'
		}
		return r
	}, strings.ToValidUTF8(search, "*"))
}

// nothing ends the words about a release that was refused.
const nothing = " Nothing was released."

// words explains an error in plain words to the reader of a page. The error of Redis follows,
// escaped.
func words(err error) string {
	var meaning string
	switch {
	case err == nil:
		return ""
	case errors.Is(err, errClosed), errors.Is(err, errMany):
		return err.Error()
	case errors.Is(err, fleet.ErrIncomplete):
		meaning = "Some locks could not be read, and are missing here."
	case errors.Is(err, fleet.ErrNoGrant):
		return "No holder of this lock has this token any more: the lock is free, or was granted anew." + nothing
	case errors.Is(err, fleet.ErrVoted):
		return "This lock is kept by a quorum of servers, and one server alone cannot release it." + nothing
	case errors.Is(err, driver.ErrKeyOccupied):
		return "This key has a value in the store that is no lock."
	case errors.Is(err, driver.ErrNotReady):
		meaning = "The server is not ready: it is loading, or has no master at the moment."
	case errors.Is(err, context.DeadlineExceeded):
		return "The server did not answer in time."
	case errors.Is(err, driver.ErrUnavailable):
		meaning = "The server was not reached, or has refused."
	default:
		meaning = "This did not succeed."
	}
	said, _, _ := strings.Cut(err.Error(), "\n")
	for _, known := range []error{fleet.ErrOutcomeUnknown, fleet.ErrIncomplete, driver.ErrNotReady, driver.ErrUnavailable} {
		said = strings.TrimPrefix(said, known.Error()+": ")
	}
	return fmt.Sprintf("%s (%s)", meaning, short(said, 300))
}

// sinceText says how long ago a time was, as ui.js does.
func sinceText(since int64) string {
	if since == 0 {
		return "unknown"
	}
	return durationText(now() - since)
}

// leftText says the remaining time, as ui.js does.
func leftText(end int64) string {
	switch left := end - now(); {
	case end == 0:
		return "never ends"
	case left <= 0:
		return "over"
	default:
		return durationText(left)
	}
}

// durationText is a number of milliseconds in at most two units.
func durationText(ms int64) string { return display.Duration(time.Duration(ms) * time.Millisecond) }

// confirms reports whether a text that was typed names the key: as it is shown, or as it
// is.
func confirms(typed, key string) bool { return typed == display.Text(key) || typed == key }
