package pgstore

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/fencing"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/internal/host"
	"github.com/interlock-go/interlock/core/internal/pgpool"
)

// Store keeps locks and idempotency records in PostgreSQL. It implements [driver.Store]
// and [record.Store], and is safe for concurrent use. [New] makes one; the zero value
// does not work. Close it after the lockers and engines that use it.
type Store struct {
	settings
	db      *sql.DB // for the transactions of handlers
	fences  fencing.Table
	text    pgpool.Texts[statements]
	awaited awaited
	notices notices
	ears    *ears
	locks   locks
	joining sync.Map // the tokens of claims with an item that waits for its batch

	work *host.Work

	readOnly atomic.Int64 // when a connection last turned out to only read, in ns since 1970
}

var (
	_ record.Store      = (*Store)(nil)
	_ record.Transactor = (*Store)(nil)
)

// statements are the texts of the store's statements.
type statements struct {
	begin, claim, take, announce, extend, mark, step, store, storeAll, commit, interim, settle, abandon, resolve, forget, sweep, look string
	channel, notify                                                                                                                   string
}

// bound is a table that limits the wait of its statement for the lock of a row, to $2 ms, and has
// the commit wait for the disk where the role or the database has synchronous_commit off. Both
// end with the transaction.
const bound = "(SELECT set_config('lock_timeout', $2::text, true) AS bound," +
	" CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END AS flush) AS conf"

//go:embed sql/*.sql
var sources embed.FS

// New makes a [Store] on a pool of connections to PostgreSQL 14 or later. It sends
// nothing: the tables are made by [Store.Migrate]. It returns an error that matches
// [driver.ErrConfig] for a nil db and for an option that cannot work.
//
// The store deletes rows that are not needed any more in the background, until [Store.Close].
func New(db *sql.DB, opts ...Option) (*Store, error) {
	set := defaults()
	for _, o := range opts {
		if o != nil {
			o(&set)
		}
	}
	switch {
	case set.err != nil:
		return nil, set.err
	case db == nil:
		return nil, fmt.Errorf("%w: db is nil; sql.Open makes one", driver.ErrConfig)
	}
	if set.records == nil {
		set.records = db
	}
	s := &Store{settings: set, db: db}
	s.fences.Name = set.schema + set.prefix + "fence"
	if set.listener != nil {
		s.ears = &ears{listener: set.listener, channel: s.channel}
	}
	s.text.Init(s.statements)
	s.work = host.Begin(s.log)
	s.awaited.init()
	if s.sweep > 0 {
		s.work.Go(s.deleteExpired)
	}
	return s, nil
}

// statements returns the texts on the store's tables; fit makes them fit the size of the table
// of records.
func (s *Store) statements(fit func(text string) string) *statements {
	file := func(name string) string { return fit(s.statement(name)) }
	return &statements{
		begin: file("begin"), claim: file("claim"), take: file("take"), interim: file("interim"), store: file("store"), storeAll: file("storeall"), extend: file("extend"), mark: file("mark"), step: file("step"),
		commit: file("commit"), abandon: file("abandon"), resolve: file("resolve"), sweep: file("sweep"), look: file("look"),
		// A row that is being committed is waited for.
		announce: fit(s.named("WITH noted AS (UPDATE interlock_record SET waits = true FROM " + bound +
			" WHERE id = $1::text AND state = 'c' RETURNING id) SELECT EXISTS (SELECT FROM noted)")),
		channel: "SELECT " + s.channelText(),
		notify:  "SELECT count(pg_notify(" + s.channelText() + ", payload)::text) FROM unnest($1::text::text[]) AS payload",
		settle:  fit(s.named("SELECT token, state, ticket, CASE WHEN state = 'c' THEN response END, steps FROM interlock_record AS r, " + bound + " WHERE id = $1::text FOR UPDATE OF r")),
		forget:  fit(s.named("DELETE FROM interlock_record USING " + bound + " WHERE id = $1::text")),
	}
}

// measure has the statements follow the size of the table of records, once a second at most.
// No caller waits for it.
func (s *Store) measure() {
	if !s.text.Due() {
		return
	}
	s.work.Go(func() {
		ctx, cancel := context.WithTimeout(s.work.Life(), s.timeout)
		defer cancel()
		err := s.text.Measure(ctx, s.records, s.named("interlock_record"))
		if err != nil {
			s.work.Failed("the size of the table of records is not known", explain(err))
		}
	})
}

// statement returns the statement of a file, on the store's tables. The comment at its
// head stays here.
func (s *Store) statement(name string) string {
	text, err := sources.ReadFile("sql/" + name + ".sql")
	if err != nil {
		panic(err) // it is built in
	}
	lines := strings.Split(string(text), "\n")
	for len(lines) > 0 && strings.HasPrefix(lines[0], "--") {
		lines = lines[1:]
	}
	return s.named(strings.Join(lines, "\n"))
}

// named puts the names of the store's tables into a text.
func (s *Store) named(text string) string {
	return strings.ReplaceAll(text, "interlock_", s.schema+s.prefix)
}

// Close ends the background work of the store, and waits for it. It does not close the
// pools. A claim that comes later is refused with [driver.ErrUnavailable]. A second
// call does nothing. It returns nil.
func (s *Store) Close() error {
	s.work.End()
	s.work.Wait()
	return s.locks.close()
}
