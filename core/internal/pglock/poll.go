package pglock

import (
	"context"
	"database/sql"
	"math"
	"time"

	"github.com/interlock-go/interlock/core/driver/keystate"
	"github.com/interlock-go/interlock/core/internal/pgpool"
)

const (
	// maxLooked is how many locks one statement looks at.
	maxLooked = 1000
	// lookShare is how many times as long as a look the pause after it is at the least.
	lookShare = 4
)

// look is the poller: it looks at the watched locks, all that are due in one statement,
// for as long as there are any. It takes a fifth of the time of one connection at most.
func (w *watches) look() {
	for {
		due, wait := w.due(time.Now())
		switch {
		case wait < 0:
			return
		case len(due) == 0:
			if !w.store.sleep(wait, w.sooner) {
				return
			}
			continue
		}
		begin := time.Now()
		all, err := w.store.look(due)
		now := time.Now()
		if err != nil {
			w.store.failed("looking for locks that were released has failed: waiting lockers find them late", err)
		}
		w.looked(due, all, err, begin, now)
		if !w.store.sleep(max(lookShare*now.Sub(begin), lookSoonest/2), nil) {
			return
		}
	}
}

// due returns the topics to look at now, or how long to wait for the next; if there are
// none, the time is negative and the poller ends.
func (w *watches) due(now time.Time) (due []*topic, wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.topics) == 0 {
		w.looking = false
		return nil, -1
	}
	w.prove(now)
	wait = heardLatest
	for _, t := range w.topics {
		// A topic that is due a moment later goes with it.
		if left := t.due.Sub(now); left > lookSoonest/4 {
			wait = min(wait, left)
		} else if len(due) < maxLooked {
			due = append(due, t)
		}
	}
	return due, wait
}

// news is what a look says of a lock.
type news struct {
	row
	i      int   // of the topic, from 1
	there  bool  // there is a row
	ends   int64 // of its last lease, in µs
	lapsed bool  // that has passed
}

// look asks whether some locks have news.
func (s *Store) look(due []*topic) (all []news, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), s.set.Timeout)
	defer cancel()
	keys := bytesArray(due, func(t *topic) string { return t.key })
	s.watches.mu.Lock()
	known := numberArray(due, func(t *topic) int64 { return t.called })
	passed := numberArray(due, func(t *topic) int64 { return t.passed })
	s.watches.mu.Unlock()
	err = pgpool.On(ctx, s.db, func(conn *sql.Conn) error {
		all = all[:0]
		begin := time.Now()
		rows, err := conn.QueryContext(ctx, s.text.Load().look, keys, known, passed)
		reads, now := false, int64(0)
		err = each(rows, err, func() error {
			var n news
			err := rows.Scan(&n.i, &n.there, &n.ends, &n.lapsed, &n.called, &n.names, &n.text, &reads, &now)
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

// looked passes the news of a look on to the watchers. The look took from begin to now, and may have failed.
func (w *watches) looked(due []*topic, all []news, failed error, begin, now time.Time) {
	w.do(func() {
		for _, n := range all {
			// Where a locker has been called or refused since, the row may be older.
			if t := due[n.i-1]; failed == nil && !t.quiet.After(begin) {
				w.found(t, n, now)
			}
		}
		for _, t := range due {
			if failed != nil {
				t.quiet = time.Time{} // as late as may be
			}
			t.due = now.Add(w.pause(t, now))
		}
	})
}

// found tells the watchers of a topic what its row says. Called with w.mu held.
func (w *watches) found(t *topic, n news, now time.Time) {
	if !n.there {
		if !t.missing {
			w.tellAll(t)
		}
		t.called, t.missing = -1, true
		return
	}
	if t.missing = false; t.called != n.called {
		t.called, t.quiet = n.called, now
	}
	var rec keystate.Record
	_ = rec.UnmarshalText([]byte(n.text)) // a request says what is wrong with it
	list, signal := rec.Waiting(), signalOf(n.names)
	ended := n.lapsed && n.ends != t.passed
	if ended {
		t.passed = n.ends
	}
	last, _ := w.store.rows.get(t.key)
	n.since = last.since
	w.store.saw(t.key, n.row)
	t.ahead = math.MaxInt16
	for x := range t.watchers {
		at := indexIn(list, x.id)
		t.ahead = min(t.ahead, max(at, 0))
		missed := n.called != 0 && n.called != x.called
		switch x.called = n.called; {
		case missed && calls(signal, x.id):
			w.tell(x, signal)
		case missed && at < 0:
			w.tell(x, keystate.Signal{}) // its turn has passed
		case ended:
			w.tell(x, keystate.Signal{Next: list})
		}
	}
}
