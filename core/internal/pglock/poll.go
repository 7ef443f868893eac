package pglock

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/keystate"
	"github.com/interlock-go/interlock/core/internal/pgpool"
)

const (
	// maxLooked is how many locks one statement looks at.
	maxLooked = 1000
	// lookShare is how many times as long as a look the pause after it is at the least.
	lookShare = 4
)

// look is the poller: it looks at the locks that lockers of this process wait for, all that are due in one statement,
// for as long as there are any. It takes a fifth of the time of one connection at most.
func (w *calls) look() {
	for {
		due, wait, lost := w.due(time.Now())
		if lost {
			w.missed()
		}
		switch {
		case wait < 0:
			return
		case len(due) == 0:
			if !w.store.work.Sleep(wait, w.sooner) {
				return
			}
			continue
		}
		begin := time.Now()
		all, err := w.store.look(due)
		now := time.Now()
		if err != nil {
			w.store.work.Failed("looking for locks that were released has failed: waiting lockers find them late", err)
		}
		w.looked(due, all, err, begin, now)
		if !w.store.work.Sleep(max(lookShare*now.Sub(begin), lookSoonest/2), nil) {
			return
		}
	}
}

// due returns where to look now, or how long to wait for the next time; if no locker waits, the time is negative and the
// poller ends. lost says that announcements are heard no more.
func (w *calls) due(now time.Time) (due []*wait, pause time.Duration, lost bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waits) == 0 {
		w.looking = false
		return nil, -1, false
	}
	lost, pause = w.prove(now), heardLatest
	for _, t := range w.waits {
		// What is due a moment later goes with it.
		if left := t.due.Sub(now); left > lookSoonest/4 {
			pause = min(pause, left)
		} else if len(due) < maxLooked {
			due = append(due, t)
		}
	}
	return due, pause, lost
}

// news is what a look says of a lock.
type news struct {
	row
	i      int   // of the wait, from 1
	there  bool  // there is a row
	ends   int64 // of its last lease, in µs
	lapsed bool  // that has passed
}

// look asks whether some locks have news.
func (s *Store) look(due []*wait) (all []news, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), s.set.Timeout)
	defer cancel()
	keys := bytesArray(due, func(t *wait) string { return t.key })
	s.calls.mu.Lock()
	known := numberArray(due, func(t *wait) int64 { return t.called })
	passed := numberArray(due, func(t *wait) int64 { return t.passed })
	s.calls.mu.Unlock()
	err = pgpool.On(ctx, s.db, func(conn *sql.Conn) error {
		all = all[:0]
		begin := time.Now()
		rows, err := conn.QueryContext(ctx, s.text.Load().look, keys, known, passed)
		reads, now := false, int64(0)
		err = each(rows, err, func() error {
			var n news
			err := rows.Scan(&n.i, &n.there, &n.ends, &n.lapsed, &n.called, &n.calls, &n.text, &reads, &now)
			n.at = time.UnixMicro(now)
			if n.i >= 1 && n.i <= len(due) {
				all = append(all, n)
			}
			return err
		})
		if err == nil {
			s.trips.Note(time.Since(begin))
			s.clock.saw(time.UnixMicro(now), begin)
		}
		if err == nil && reads { // it may be a former primary, where no release comes any more
			return pgpool.ErrReadOnly
		}
		return err
	})
	return all, err
}

// looked calls the lockers that a look has news for. It took from begin to now, and may have failed.
func (w *calls) looked(due []*wait, all []news, failed error, begin, now time.Time) {
	var found []keystate.Call
	w.mu.Lock()
	for _, n := range all {
		// Where a locker has been called or refused since, the row may be older. A locker that does not hear yet is called by
		// a later look.
		if t := due[n.i-1]; failed == nil && !t.quiet.After(begin) && w.lockers.Has(t.id) {
			if c, called := w.found(t, n, now); called {
				c.Key = t.key
				found = append(found, keystate.Call{To: t.id, Call: c})
			}
		}
	}
	for _, t := range due {
		if failed != nil {
			t.quiet = time.Time{} // as late as may be
		}
		t.due = now.Add(w.pause(t, now))
	}
	w.mu.Unlock()
	for _, c := range found {
		w.lockers.Call(c.To, c.Call)
	}
}

// found notes what a look says of a lock, and returns the call that its locker has missed. Called with w.mu held.
func (w *calls) found(t *wait, n news, now time.Time) (c driver.Call, called bool) {
	gone := t.missing
	if t.missing = !n.there; t.missing {
		return c, !gone
	}
	missed := n.called != t.called
	if missed {
		t.called, t.quiet = n.called, now
	}
	var list driver.Waiters
	if rec, err := n.read(); err == nil { // else a request says what is wrong with it
		list = rec.Waiting()
	}
	last, _ := w.store.rows.get(t.key)
	n.since = last.since
	w.store.saw(t.key, n.row)
	ended := n.lapsed && n.ends != t.passed
	if ended {
		t.passed = n.ends
	}
	at := indexIn(list, t.id)
	t.ahead = max(at, 0)
	i := slices.IndexFunc(readCalls(n.calls), func(c keystate.Call) bool { return c.To == t.id })
	switch {
	case missed && i >= 0:
		c = readCalls(n.calls)[i].Call
	case missed && at < 0: // its turn has passed
		return c, true
	case ended:
		c, _ = list.Call(t.id, 0)
	default:
		return c, false
	}
	if c.What != driver.Turn { // of an offer it learns in the answer to a request: the row need not be on the standby
		c = driver.Call{What: driver.Turn}
	}
	return c, true
}
