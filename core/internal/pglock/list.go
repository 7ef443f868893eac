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
	all, _, err := s.page(ctx, key, 1)
	if err != nil || len(all) == 0 || all[0].Key != key {
		return driver.View{Key: key}, err
	}
	return all[0].View, all[0].err
}

// List goes through the locks with keys that begin with a text, for package fleet.
func (s *Store) List(ctx context.Context, begin string, _ func(key string) bool) iter.Seq2[driver.View, error] {
	return func(yield func(driver.View, error) bool) {
		for from, full := begin, true; full; {
			var all []view
			var err error
			if all, full, err = s.page(ctx, from, listPage); err != nil {
				yield(driver.View{}, err)
				return
			}
			for _, v := range all {
				if !strings.HasPrefix(v.Key, begin) || (v.err != nil || !v.Free()) && !yield(v.View, v.err) {
					return
				}
				from = v.Key + "\x00" // the next key that there can be
			}
		}
	}
}

// view is the state of a lock, or says that it cannot be read.
type view struct {
	driver.View
	err error
}

// page reads the locks from a key on. full says that there may be more.
func (s *Store) page(ctx context.Context, from string, most int) (all []view, full bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.set.Timeout)
	defer cancel()
	err = pgpool.On(ctx, s.db, func(conn *sql.Conn) error {
		s.measure(conn)
		rows, err := conn.QueryContext(ctx, s.text.Load().list, []byte(from), most)
		return each(rows, err, func() error {
			var key []byte
			var l listed
			if err := rows.Scan(&key, &l.text, &l.now, &l.n); err != nil {
				return err
			}
			all, full = append(all, l.view(string(key))), l.n == most
			return nil
		})
	})
	if err != nil {
		return nil, false, wrap(err, fateOf(err, true))
	}
	return all, full, nil
}

// listed is a row of list.sql.
type listed struct {
	text string // of the record; empty: it is a note
	now  int64
	n    int
}

// view makes the state of a lock from its row, for an operator.
func (l *listed) view(key string) view {
	var rec keystate.Record
	if l.text == "" {
		return view{driver.View{Key: key}, nil}
	}
	if err := rec.UnmarshalText([]byte(l.text)); err != nil {
		return view{driver.View{Key: key}, fmt.Errorf("interlock: the record of the lock %q: %w", key, err)}
	}
	return view{rec.View(key, time.UnixMicro(l.now)), nil}
}
