package pglock

import (
	"context"
	"database/sql"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/keystate"
	"github.com/interlock-go/interlock/core/internal/pgpool"
)

// listPage is how many rows of the table one statement of List reads.
const listPage = 500

// Look returns the state of the lock of a key, for package fleet.
func (s *Store) Look(ctx context.Context, key string) (driver.View, error) {
	views, _, err := s.page(ctx, key, 1)
	if err != nil || len(views) == 0 || views[0].Key != key {
		return driver.View{Key: key}, err
	}
	return views[0], nil
}

// List goes through the locks with keys that begin with a text, for package fleet.
func (s *Store) List(ctx context.Context, begin string) iter.Seq2[driver.View, error] {
	return func(yield func(driver.View, error) bool) {
		for from, full := begin, true; full; {
			var views []driver.View
			var err error
			if views, full, err = s.page(ctx, from, listPage); err != nil {
				yield(driver.View{}, err)
				return
			}
			for _, v := range views {
				if !strings.HasPrefix(v.Key, begin) || !v.Free() && !yield(v, nil) {
					return
				}
				from = v.Key + "\x00" // the next key that there can be
			}
		}
	}
}

// page reads the locks from a key on. full says that there may be more.
func (s *Store) page(ctx context.Context, from string, most int) (views []driver.View, full bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.set.Timeout)
	defer cancel()
	err = pgpool.On(ctx, s.db, func(conn *sql.Conn) error {
		s.measure(conn)
		rows, err := conn.QueryContext(ctx, s.text.Load().list, []byte(from), most)
		return each(rows, err, func() error {
			var key []byte
			var l listed
			if err := rows.Scan(&key, &l.row.Owner, &l.row.Token, &l.ends, &l.row.Waiting, &l.text, &l.now, &l.n); err != nil {
				return err
			}
			v, err := l.view(string(key))
			views, full = append(views, v), l.n == most
			return err
		})
	})
	if err != nil {
		return nil, false, wrap(err, fateOf(err, true))
	}
	return views, full, nil
}

// listed is a row of list.sql.
type listed struct {
	row       keystate.Row
	text      string // of the record
	ends, now int64
	n         int
}

// view makes the state of a lock from its row, for an operator.
func (l *listed) view(key string) (driver.View, error) {
	now := time.UnixMicro(l.now)
	l.row.Ends = time.UnixMicro(l.ends)
	rec, err := recordOf(l.row, l.text)
	if err != nil {
		return driver.View{}, fmt.Errorf("interlock: the record of the lock %q: %w", key, err)
	}
	return rec.View(key, now), nil
}
