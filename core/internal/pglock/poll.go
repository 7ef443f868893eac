package pglock

import (
	"context"
	"database/sql"
	"time"

	"github.com/interlock-go/interlock/core/driver"
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
		rows, err := w.store.look(due)
		now := time.Now()
		if err != nil {
			w.store.failed("looking for locks that were released has failed: waiting lockers find them late", err)
		}
		w.looked(due, rows, begin, now)
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

// row is what a look says of a lock.
type row struct {
	token        int64 // 0: there is no row
	lapsed, free bool
	called       int64         // when lockers were last to look; 0: never
	age          time.Duration // how long ago that was
	list         string
}

// look reads the rows of some locks.
func (s *Store) look(due []*topic) (rows []row, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), s.set.Timeout)
	defer cancel()
	batch := make([]*request, len(due))
	for i, t := range due {
		batch[i] = &request{key: t.key}
	}
	keys := bytesArray(batch, func(r *request) string { return r.key })
	rows = make([]row, len(due))
	err = pgpool.On(ctx, s.db, func(conn *sql.Conn) error {
		begin := time.Now()
		found, err := conn.QueryContext(ctx, s.text.Load().look, keys)
		reads := false
		err = each(found, err, func() error {
			var i int
			var r row
			var age int64
			err := found.Scan(&i, &r.token, &r.lapsed, &r.free, &r.called, &age, &r.list, &reads)
			r.age = time.Duration(age) * time.Microsecond
			if i >= 1 && i <= len(rows) {
				rows[i-1] = r
			}
			return err
		})
		if err == nil {
			s.trips.Note(time.Since(begin))
		}
		if err == nil && reads { // it may be a former primary, where no release comes any more
			return pgpool.ErrReadOnly
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// looked passes the rows of a look on to the watchers. The look took from begin to now; rows is nil if
// it has failed.
func (w *watches) looked(due []*topic, rows []row, begin, now time.Time) {
	w.do(func() {
		soonest, latest := lookSoonest, lookLatest
		if w.proof.holds {
			soonest, latest = heardSoonest, heardLatest
		}
		for i, t := range due {
			switch {
			case i >= len(rows):
				t.quiet = time.Time{} // as late as may be
			case t.quiet.After(begin):
				// A release was announced since. The row may be older, and its list is of an earlier release.
			default:
				w.found(t, rows[i], now)
			}
			t.due = now.Add(min(max(now.Sub(t.quiet)/4, soonest), latest))
		}
	})
}

// found tells the watchers of a topic what its row says. Called with w.mu held.
func (w *watches) found(t *topic, r row, now time.Time) {
	if t.token != r.token || t.called != r.called {
		t.token, t.called, t.quiet = r.token, r.called, now
	}
	for x := range t.watchers {
		switch {
		case r.token == 0:
			if !x.missing {
				x.missing = true
				w.tell(x, driver.Signal{})
			}
		case r.called != 0 && r.called != x.called && r.age < now.Sub(x.since):
			x.called = r.called
			if r.free {
				w.tell(x, signalOf(r.list))
			} else {
				// The lock has its next owner already. The locker with the turn before that is no more
				// in the list.
				w.tell(x, driver.Signal{})
			}
		case r.lapsed && r.token != x.lapsed:
			x.lapsed = r.token
			w.tell(x, driver.Signal{Next: driver.Waiters(r.list)})
		}
		x.missing = x.missing && r.token == 0
	}
}
