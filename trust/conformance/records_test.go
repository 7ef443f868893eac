//go:build integration && unix

package conformance

import (
	"bytes"
	"context"
	"database/sql"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/internal/idemcases"
	"github.com/interlock-go/interlock/internal/pace"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// opener returns what opens records. Cases that run one after the other share a schema,
// and the connections to it.
func opener(t *testing.T) func(*testing.T, idemcases.Server) *records {
	t.Helper()
	shared := connect(t, pgtest.DSN(t))
	shared.owner = t
	return func(t *testing.T, server idemcases.Server) *records {
		t.Helper()
		switch server {
		case idemcases.Shared:
			shared.reset(t)
			return shared
		case idemcases.Beside:
			return connect(t, pgtest.DSN(t))
		}
		// The files survive the end of the processes, which is all that cases cause.
		own := pgtest.Start(t, "fsync=off", "full_page_writes=off")
		r := connect(t, own.DSN())
		r.server = own
		return r
	}
}

// records are records in PostgreSQL, over a wire that can lose replies. Locks are those
// of a store in memory, since pgstore has none.
type records struct {
	idemcases.Wire
	owner  *testing.T     // of the stores; nil: the case
	server *pgtest.Server // if the case has it for itself
	killed bool
	name   string // of the connections
	db     *sql.DB
	pace   pace.Pace
	locks  *memstore.Store
	stores map[string]*watched
}

// watched is a store that counts the duplicates that wait. pgstore.Tx finds the store in it.
type watched struct {
	*pgstore.Store
	waiting atomic.Int64
}

// Unwrap returns the store.
func (w *watched) Unwrap() idempotency.Store { return w.Store }

// connect returns the records of a schema.
func connect(t *testing.T, dsn string) *records {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	// The text of each statement is on the wire, and is sent in one round trip.
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	r := &records{name: t.Name(), locks: memstore.New(), stores: make(map[string]*watched)}
	config.RuntimeParams["application_name"] = r.name // for Forget
	config.DialFunc, r.Counts = r.Dial, isStatement
	r.db = stdlib.OpenDB(*config)
	t.Cleanup(func() { _ = r.db.Close() })
	r.pace = pace.Of(t, func() error { return r.db.PingContext(t.Context()) })
	return r
}

// isStatement reports whether the driver writes statements, and neither the start of a
// session, which begins with its length, nor what tells it whether a connection is alive.
func isStatement(written []byte) bool {
	return len(written) > 0 && written[0] != 0 && !bytes.HasSuffix(written, []byte("-- ping\x00"))
}

// reset makes the schema empty for the next case.
func (r *records) reset(tb testing.TB) {
	tb.Helper()
	r.LoseReplyTo("")
	r.locks = memstore.New()
	for service := range r.stores {
		r.exec(tb, "DELETE FROM "+service+"_record")
		r.exec(tb, "DELETE FROM "+service+"_fence")
	}
	r.exec(tb, "DROP TABLE IF EXISTS effect")
}

func (r *records) Store(tb testing.TB, service string) idempotency.Store {
	tb.Helper()
	if w := r.stores[service]; w != nil {
		return w
	}
	if r.owner != nil {
		tb = r.owner
	}
	store, err := pgstore.New(r.db, pgstore.Prefix(service+"_"), pgstore.Logger(slog.New(slog.DiscardHandler)),
		pgstore.SweepEvery(-1)) // its statements would be counted
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = store.Close() })
	if err := store.Migrate(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	r.stores[service] = &watched{Store: store}
	return r.stores[service]
}

// Await implements idempotency.Store.
func (w *watched) Await(id string, since time.Time, wake func()) func() {
	stop := w.Store.Await(id, since, wake)
	w.waiting.Add(1)
	return func() { stop(); w.waiting.Add(-1) }
}

func (r *records) Waiting(testing.TB) int {
	var n int64
	for _, w := range r.stores {
		n += w.waiting.Load()
	}
	return int(n)
}

func (r *records) Locks(testing.TB) core.Store { return r.locks }

func (r *records) LoseLock(_ testing.TB, key string) bool { return r.locks.Expire(key) }

// exec runs a statement and returns how many rows it has changed.
func (r *records) exec(tb testing.TB, text string) int64 {
	tb.Helper()
	result, err := r.db.ExecContext(tb.Context(), text)
	if err != nil {
		tb.Error(err)
		return 0
	}
	n, err := result.RowsAffected()
	if err != nil {
		tb.Error(err)
	}
	return n
}

func (r *records) Count(tb testing.TB, service string) (n int) {
	tb.Helper()
	err := r.db.QueryRowContext(tb.Context(), "SELECT count(*) FROM "+service+"_record WHERE keep_until > clock_timestamp()").Scan(&n)
	if err != nil {
		tb.Error(err)
	}
	return n
}

func (r *records) Dump(tb testing.TB) string {
	tb.Helper()
	var all strings.Builder
	for service := range r.stores {
		rows, err := r.db.QueryContext(tb.Context(), "SELECT r::text, fingerprint, response FROM "+service+"_record AS r")
		if err != nil {
			tb.Fatal(err)
		}
		for rows.Next() {
			var text string
			var fingerprint, response []byte
			if err := rows.Scan(&text, &fingerprint, &response); err != nil {
				tb.Error(err)
			}
			all.WriteString(text + string(fingerprint) + string(response))
		}
		if err := rows.Err(); err != nil {
			tb.Error(err)
		}
	}
	return all.String()
}

func (r *records) Empty(tb testing.TB) {
	tb.Helper()
	for service := range r.stores {
		r.exec(tb, "DELETE FROM "+service+"_record")
	}
}

// Lapse sets the ends of the leases back. A server that was killed cannot be told.
func (r *records) Lapse(tb testing.TB) {
	tb.Helper()
	if r.killed {
		return
	}
	for service := range r.stores {
		r.exec(tb, "UPDATE "+service+"_record SET lease_until = clock_timestamp() - interval '1 hour'")
	}
}

func (r *records) Pace() pace.Pace { return r.pace }

func (r *records) Damage(tb testing.TB) {
	tb.Helper()
	if n := r.exec(tb, "UPDATE interlock_record SET response = 'x'"); n != 1 {
		tb.Fatalf("%d records", n)
	}
}

// Forget ends the sessions.
func (r *records) Forget(tb testing.TB) {
	tb.Helper()
	var n int
	err := pgtest.Open(tb).QueryRowContext(tb.Context(), "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity "+
		"WHERE application_name = left($1::text, 63)", r.name).Scan(&n)
	if err != nil || n == 0 {
		tb.Errorf("%d sessions ended, %v", n, err)
	}
}

func (r *records) Kill(tb testing.TB) { tb.Helper(); r.server.Abort(tb); r.killed = true }

func (r *records) Restart(tb testing.TB) { tb.Helper(); r.server.Restart(tb); r.killed = false }

func (r *records) LoseClaim() { r.LoseReplyTo("INSERT INTO interlock_record") }

func (r *records) LoseCommit() { r.LoseReplyTo("SET state = $3::text") }

// Measure counts what is sent to PostgreSQL.
func (r *records) Measure(_ testing.TB, run func()) idemcases.Cost {
	before := r.Sent()
	run()
	n := r.Sent() - before
	return idemcases.Cost{Trips: n, Requests: n}
}

// cost is that of requests one by one.
func cost(n int64) idemcases.Cost { return idemcases.Cost{Trips: n, Requests: n} }

// Costs are claim and commit, and between them the mark. The lock is elsewhere. A claim
// that finds a record asks a second time.
func (r *records) Costs() idemcases.Costs {
	return idemcases.Costs{Fresh: cost(2), Marked: cost(3), Locked: cost(2), Replay: cost(2), Conflict: cost(2)}
}

// transactions are records with effects in the same database.
type transactions struct{ *records }

func inTransactions(t *testing.T, r *records) transactions {
	t.Helper()
	r.exec(t, "CREATE TABLE effect (number bigint NOT NULL)")
	return transactions{r}
}

func (r transactions) Enter(ctx context.Context, number int) error {
	tx, err := pgstore.Tx(ctx)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO effect VALUES ($1::bigint)", number)
	return err
}

func (r transactions) Entered(tb testing.TB) (numbers []int) {
	tb.Helper()
	rows, err := r.db.QueryContext(tb.Context(), "SELECT number FROM effect ORDER BY number")
	if err != nil {
		tb.Fatal(err)
	}
	for rows.Next() {
		var n int
		if err := rows.Scan(&n); err != nil {
			tb.Error(err)
		}
		numbers = append(numbers, n)
	}
	if err := rows.Err(); err != nil {
		tb.Error(err)
	}
	return numbers
}

// LoseCommit loses the reply to the commit itself.
func (r transactions) LoseCommit() { r.LoseReplyTo("commit\x00") }

// Costs are claim, begin, settings, effect, answer and commit. A lock costs a fence.
func (r transactions) Costs() idemcases.Costs {
	return idemcases.Costs{Fresh: cost(6), Marked: cost(7), Locked: cost(7), Replay: cost(2), Conflict: cost(2)}
}
