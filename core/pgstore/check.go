package pgstore

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// longOpen is from when on Check names a transaction that stays open.
const longOpen = time.Minute

// open finds the oldest transaction of another session that keeps dead rows, also a prepared one, in
// seconds, and how many sessions the user may not see.
const open = `SELECT current_setting('fsync'), current_setting('full_page_writes'),
	greatest(coalesce((SELECT extract(epoch FROM max(clock_timestamp() - xact_start)) FROM pg_stat_activity
			WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid() AND backend_type = 'client backend'), 0),
		coalesce((SELECT extract(epoch FROM max(clock_timestamp() - prepared)) FROM pg_prepared_xacts), 0))::bigint,
	(SELECT count(*) FROM pg_stat_activity WHERE query = '<insufficient privilege>')`

// Check asks PostgreSQL about its settings and its sessions. It returns a list of unsafe conditions,
// each a sentence, or an empty list. Unsafe are a server that does not write through to the disk, and a
// transaction that has been open for a minute: as long as it is, every version of a row stays, and a
// look at a lock passes those of the lock. The user sees the transactions of others with the role
// pg_read_all_stats; without it, that is a sentence, too. The error matches driver.ErrUnavailable if
// PostgreSQL does not answer.
func (s *Store) Check(ctx context.Context) ([]string, error) {
	var now state
	var seconds int64
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	err := s.on(ctx, s.db, func(conn *sql.Conn) error {
		return conn.QueryRowContext(ctx, open).Scan(&now.fsync, &now.pages, &seconds, &now.hidden)
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	now.oldest = time.Duration(seconds) * time.Second
	return now.unsafe(), nil
}

// state is the answer of a server to Check.
type state struct {
	fsync, pages string
	oldest       time.Duration // since when a transaction is open
	hidden       int           // sessions
}

// unsafe returns a sentence for each unsafe condition.
func (s state) unsafe() (found []string) {
	if s.fsync != "on" || s.pages != "on" {
		found = append(found, fmt.Sprintf("fsync is %s, and full_page_writes is %s: a crash of the server can bring former holders back", s.fsync, s.pages))
	}
	if s.oldest >= longOpen {
		found = append(found, fmt.Sprintf("a transaction has been open for %v: it keeps all versions of rows, and locks that many wait for become slow", s.oldest))
	}
	if s.hidden > 0 {
		found = append(found, fmt.Sprintf("the transactions of %d sessions of other users are hidden: GRANT pg_read_all_stats shows them", s.hidden))
	}
	return found
}
