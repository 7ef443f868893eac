package pgstore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

const (
	// longOpen is from when on Check names a transaction that stays open.
	longOpen = 10 * time.Second
	// manyKept is from how many transactions on Check names a standby or a slot that keeps their rows.
	manyKept = 10_000
	// oldestServer is the oldest PostgreSQL that reads a part of a table by the numbers of its pages.
	oldestServer = 14
)

// onServer asks for the settings of the server; for how many seconds another session, or a prepared
// transaction, has kept dead rows; and for how many transactions a standby or a slot has.
const onServer = `SELECT current_setting('server_version_num')::int / 10000, current_setting('fsync'), current_setting('full_page_writes'),
	current_setting('autovacuum'), current_setting('track_counts'), current_setting('track_activities'),
	greatest(coalesce((SELECT extract(epoch FROM max(clock_timestamp() - xact_start)) FROM pg_stat_activity
			WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid() AND backend_type = 'client backend'), 0),
		coalesce((SELECT extract(epoch FROM max(clock_timestamp() - prepared)) FROM pg_prepared_xacts), 0))::bigint,
	(SELECT count(*) FROM pg_stat_activity WHERE query = '<insufficient privilege>'),
	greatest((SELECT max(age(xmin)) FROM pg_replication_slots),
		(SELECT max(age(backend_xmin)) FROM pg_stat_activity WHERE backend_type = 'walsender'), 0)`

// onSession asks for what a role or a database sets for a session, and who is its user.
const onSession = `SELECT current_user::text, current_setting('synchronous_commit'), current_setting('synchronous_standby_names') <> '',
	current_setting('transaction_read_only')::boolean, pg_is_in_recovery(), current_setting('bytea_output')`

// ofRoles asks for other roles that may write into the tables $1, and whose commits do not wait for the
// disk, in this database.
const ofRoles = `SELECT coalesce(string_agg(DISTINCT r.rolname, ', '), '')
FROM pg_db_role_setting d JOIN pg_roles r ON r.oid = d.setrole
WHERE d.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database())) AND r.rolname <> current_user
	AND 'synchronous_commit=off' = ANY (d.setconfig)
	AND EXISTS (SELECT FROM unnest($1::text::regclass[]) t WHERE has_table_privilege(d.setrole, t, 'INSERT'))`

// ofTables asks which of the tables $1 a crash empties, and which have no policy that lets the user
// read, insert and change rows, and delete them (but for the fences, $2).
const ofTables = `SELECT coalesce(string_agg(c.oid::regclass::text, ', ') FILTER (WHERE c.relpersistence = 'u'), ''),
	coalesce(string_agg(c.oid::regclass::text, ', ') FILTER (WHERE row_security_active(c.oid) AND EXISTS (
		SELECT FROM unnest('{r,a,w,d}'::"char"[]) need WHERE (need <> 'd' OR c.oid <> $2::text::regclass) AND NOT EXISTS (
			SELECT FROM pg_policy p WHERE p.polrelid = c.oid AND p.polpermissive AND p.polcmd IN (need, '*')
				AND EXISTS (SELECT FROM unnest(p.polroles) r WHERE r = 0 OR pg_has_role(r, 'USAGE'))))), '')
FROM pg_class c WHERE c.oid = ANY ($1::text::regclass[])`

// Check asks PostgreSQL about its settings, its sessions and the tables. It returns a list of unsafe
// conditions, each a sentence, or an empty list:
//
//   - a server that does not write through to the disk, or is older than 14;
//   - a role whose synchronous_commit is off. The store has its own commits, and transactions with an
//     answer, wait for the disk; what the service commits otherwise can be lost in a crash. With synchronous
//     standbys a weaker setting than on;
//   - a table that is UNLOGGED, or has row level security without a policy that lets the user work on it;
//   - a session that only reads, or whose bytea_output not all drivers can read;
//   - a transaction that has been open for ten seconds, or a standby or slot that keeps old rows: as long
//     as it does, every version of a row stays, and a look at a lock passes all of its versions. The user
//     sees the transactions of others with the role pg_read_all_stats; without it, a sentence begins with
//     [driver.NotKnown].
//
// The error matches driver.ErrUnavailable if PostgreSQL does not answer, and for missing tables.
func (s *Store) Check(ctx context.Context) ([]string, error) {
	var now state
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	tables, fences := s.named("{interlock_record,interlock_lock,interlock_fence}"), s.fences.Name
	err := s.on(ctx, s.db, func(conn *sql.Conn) error {
		var seconds int64
		err := conn.QueryRowContext(ctx, onServer).Scan(&now.version, &now.fsync, &now.pages, &now.vacuum, &now.counts, &now.activities,
			&seconds, &now.hidden, &now.kept)
		now.oldest = time.Duration(seconds) * time.Second
		if err == nil {
			err = now.session(ctx, conn)
		}
		if err == nil {
			err = conn.QueryRowContext(ctx, ofRoles, tables).Scan(&now.roles)
		}
		if err == nil {
			err = conn.QueryRowContext(ctx, ofTables, tables, fences).Scan(&now.unlogged, &now.closed)
		}
		return err
	})
	if err == nil && s.records != s.db {
		err = s.on(ctx, s.records, func(conn *sql.Conn) error { return now.session(ctx, conn) })
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrUnavailable, explain(err))
	}
	return now.unsafe(), nil
}

// session adds the sentences about the session of a pool.
func (s *state) session(ctx context.Context, conn *sql.Conn) error {
	var of session
	err := conn.QueryRowContext(ctx, onSession).Scan(&of.user, &of.commit, &of.standbys, &of.reads, &of.standby, &of.bytes)
	s.sessions = append(s.sessions, of)
	return err
}

// session is what holds for a session.
type session struct {
	user, commit string
	standbys     bool // there are synchronous ones
	reads        bool // only
	standby      bool // the server is one
	bytes        string
}

// state is the answer of a server to Check.
type state struct {
	version                    int
	fsync, pages               string
	vacuum, counts, activities string
	oldest                     time.Duration // since when a transaction is open
	hidden                     int           // sessions
	kept                       int64         // transactions
	sessions                   []session
	roles                      string // with synchronous_commit off
	unlogged, closed           string // tables
}

// unsafe returns a sentence for each unsafe condition.
func (s state) unsafe() (found []string) {
	add := func(when bool, format string, args ...any) {
		if text := fmt.Sprintf(format, args...); when && !slices.Contains(found, text) {
			found = append(found, text)
		}
	}
	add(s.version < oldestServer, "the server is PostgreSQL %d: %d is the oldest that is supported", s.version, oldestServer)
	add(s.fsync != "on" || s.pages != "on",
		"fsync is %s, and full_page_writes is %s: a crash of the server can bring former holders back", s.fsync, s.pages)
	add(s.unlogged != "", "a crash of the server empties %s: ALTER TABLE ... SET LOGGED", s.unlogged)
	for _, of := range s.sessions {
		add(of.commit == "off", commitOff, of.user)
		add(of.standbys && (of.commit == "local" || of.commit == "remote_write"), "synchronous_commit is %s for the role %s: "+
			"a synchronous standby that is promoted can lack locks and answers; on is enough", of.commit, of.user)
		add(of.standby, "the server is a standby, which only reads: it refuses all requests")
		add(of.reads && !of.standby, "the transactions of the role %s only read (default_transaction_read_only): all requests are refused", of.user)
		add(of.bytes != "hex", "bytea_output is %s for the role %s: a driver that asks for texts, as pgx with some poolers, cannot read "+
			"the answers; hex is the default", of.bytes, of.user)
	}
	add(s.roles != "", commitOff, s.roles)
	add(s.closed != "", "row level security of %s has no policy that lets the user read, insert, change and delete rows: requests are refused", s.closed)
	add(s.oldest >= longOpen, "a transaction has been open for %v: it keeps all versions of rows, and locks that many wait for become slow; "+
		"idle_in_transaction_session_timeout ends a forgotten one", s.oldest)
	add(s.kept >= manyKept, "a standby with hot_standby_feedback, or a replication slot, keeps the versions of rows of %d transactions: "+
		"locks that many wait for become slow", s.kept)
	add(s.vacuum != "on" || s.counts != "on", "autovacuum is %s, and track_counts is %s: tables grow, and locks become slow", s.vacuum, s.counts)
	add(s.hidden > 0, driver.NotKnown+"since when transactions of %d sessions of other users are open; GRANT pg_read_all_stats shows it", s.hidden)
	add(s.activities != "on", "track_activities is %s: since when transactions are open is not known", s.activities)
	return found
}

const commitOff = "synchronous_commit is off for the role %s: a crash of the server can lose what the service has committed, " +
	"but for locks, records and the transactions of answers"
