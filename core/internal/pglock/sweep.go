package pglock

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/ident"
	"github.com/interlock-go/interlock/core/internal/pgpool"
)

const (
	// sweepKey is the key of a lock. Its holder, one process at a time, deletes old rows.
	// No request has a zero byte in a key of that form.
	sweepKey = "\x00interlock sweep\x00"
	// sweepPages is how many pages of the table one statement reads, and sweepRows how
	// many rows it deletes at the most.
	sweepPages = 64
	sweepRows  = 1000
)

// startSweep has old rows deleted from now on.
func (s *Store) startSweep() {
	if s.set.Sweep > 0 {
		s.work.Go(s.sweep)
	}
}

// sweep deletes old rows. All processes that use the table ask for the lock of the sweep,
// once in each period; the process that gets it works for a part of the period, and lets the
// lease end.
func (s *Store) sweep() {
	for s.work.Sleep(s.set.Sweep/2+rand.N(s.set.Sweep), nil) {
		begin := time.Now()
		rep, err := s.Acquire(context.Background(), driver.AcquireRequest{
			Key: sweepKey, Owner: ident.New(), TTL: s.set.Sweep, Deadline: begin.Add(2 * s.set.Timeout), Late: func(driver.Reply, error) {},
		})
		if err == nil && rep.Granted {
			err = s.sweepUntil(begin.Add(s.set.Sweep * 3 / 4))
		}
		if err != nil {
			s.work.Failed("rows of locks that no owner holds were not deleted", err)
		}
	}
}

// sweepUntil goes through the table, from a page that is drawn by lot, until it has seen
// all of it or the time has ended. There is no index to find old rows by: their times change
// with every request, and an index on them would have to change, too.
func (s *Store) sweepUntil(end time.Time) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.set.Timeout)
	defer cancel()
	pages, err := pgpool.Pages(ctx, s.db, s.set.Table)
	if err != nil {
		return err
	}
	parts := (pages + sweepPages - 1) / sweepPages
	if parts == 0 {
		return nil
	}
	from, pause := rand.N(parts), min(s.set.Sweep/60, time.Second)
	for n := range parts {
		first := (from + n) % parts * sweepPages
		deleted, err := s.sweepPart(first, first+sweepPages)
		if err != nil {
			return err
		}
		wait := pause
		if deleted > sweepRows/2 {
			wait /= 10 // there is much to do
		}
		if time.Now().After(end) || !s.work.Sleep(wait, nil) {
			return nil
		}
	}
	return nil
}

// sweepPart deletes the old rows of some pages, and returns how many those were.
func (s *Store) sweepPart(first, end int64) (deleted int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), s.set.Timeout)
	defer cancel()
	err = pgpool.On(ctx, s.db, func(conn *sql.Conn) error {
		result, err := conn.ExecContext(ctx, s.text.Load().sweep,
			fmt.Sprintf("(%d,0)", first), fmt.Sprintf("(%d,0)", end), s.set.Keep.Microseconds(), sweepRows)
		if err == nil {
			deleted, err = result.RowsAffected()
		}
		return err
	})
	return deleted, err
}
