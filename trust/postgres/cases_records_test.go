//go:build integration && unix

package postgres_test

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
	"github.com/interlock-go/interlock/core/gather"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/internal/idemcases"
	"github.com/interlock-go/interlock/internal/pace"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// opener returns a function that opens records. Cases that run one after the other share a
// schema, and the connections to it.
func opener(t *testing.T) func(*testing.T, idemcases.Server) *records {
	t.Helper()
	shared := openRecords(t, pgtest.DSN(t))
	shared.owner = t
	return func(t *testing.T, server idemcases.Server) *records {
		t.Helper()
		switch server {
		case idemcases.Shared:
			shared.reset(t)
			return shared
		case idemcases.Beside:
			return openRecords(t, pgtest.DSN(t))
		}
		// The files survive the end of the processes, which is all that cases cause.
		own := pgtest.Start(t, "fsync=off", "full_page_writes=off")
		r := openRecords(t, own.DSN())
		r.server = own
		return r
	}
}

// records are records in PostgreSQL, over a wire that can lose replies. Locks come from a
// store in memory, since pgstore has none.
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

// openRecords returns the records of a schema.
func openRecords(t *testing.T, dsn string) *records {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	// The text of each statement is on the wire, and is sent in one round trip.
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	r := &records{name: "records of " + schemaOf(dsn), locks: memstore.New(), stores: make(map[string]*watched)}
	config.RuntimeParams["application_name"] = r.name // for Forget
	config.DialFunc, r.Counts = r.Dial, isStatement
	r.db = stdlib.OpenDB(*config)
	t.Cleanup(func() { _ = r.db.Close() })
	r.pace = pace.Of(t, func() error { return r.db.PingContext(t.Context()) })
	return r
}

// isStatement reports whether the driver writes statements, and neither the start of a
// session, which begins with its length, nor a probe of the connection.
func isStatement(written []byte) bool {
	return len(written) > 0 && written[0] != 0 && !bytes.HasSuffix(written, []byte("-- ping\x00"))
}

// reset makes the schema empty for the next case.
func (r *records) reset(tb testing.TB) {
	tb.Helper()
	r.LoseReplyTo("")
	r.locks = memstore.New()
	for service := range r.stores {
		execute(tb, r.db, "DELETE FROM "+service+"_record")
		execute(tb, r.db, "DELETE FROM "+service+"_fence")
	}
	execute(tb, r.db, "DROP TABLE IF EXISTS effect")
}

func (r *records) Store(tb testing.TB, service string) idempotency.Store {
	tb.Helper()
	if w := r.stores[service]; w != nil {
		return w
	}
	if r.owner != nil {
		tb = r.owner
	}
	// A process that a case has started must not start a server to measure it.
	store, err := pgstore.New(r.db, pgstore.Prefix(service+"_"), pgstore.SweepEvery(-1), pgstore.Logger(slog.New(slog.DiscardHandler)))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = store.Close() })
	migrate(tb, store)
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

func (r *records) Count(tb testing.TB, service string) int {
	tb.Helper()
	return read[int](tb, r.db, "SELECT count(*) FROM "+service+"_record WHERE keep_until > clock_timestamp()")
}

func (r *records) Dump(tb testing.TB) string {
	tb.Helper()
	var all strings.Builder
	for service := range r.stores {
		all.WriteString(read[string](tb, r.db, "SELECT coalesce(string_agg(r::text || encode(fingerprint, 'escape') || "+
			"encode(coalesce(response, ''), 'escape'), ''), '') FROM "+service+"_record AS r"))
	}
	return all.String()
}

func (r *records) Empty(tb testing.TB) {
	tb.Helper()
	for service := range r.stores {
		execute(tb, r.db, "DELETE FROM "+service+"_record")
	}
}

// Lapse sets the ends of the leases back. A killed server gets no request.
func (r *records) Lapse(tb testing.TB) {
	tb.Helper()
	if r.killed {
		return
	}
	for service := range r.stores {
		execute(tb, r.db, "UPDATE "+service+"_record SET lease_until = clock_timestamp() - interval '1 hour'")
	}
}

func (r *records) Pace() pace.Pace { return r.pace }

func (r *records) Damage(tb testing.TB) {
	tb.Helper()
	if n := read[int](tb, r.db, "WITH damaged AS (UPDATE interlock_record SET response = 'x' RETURNING id) SELECT count(*) FROM damaged"); n != 1 {
		tb.Fatalf("%d records", n)
	}
}

// Forget ends the sessions.
func (r *records) Forget(tb testing.TB) {
	tb.Helper()
	if n := read[int](tb, pgtest.Open(tb), "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity WHERE application_name = $1", r.name); n == 0 {
		tb.Error("no session has ended")
	}
}

func (r *records) Kill(tb testing.TB) { tb.Helper(); r.server.Abort(tb); r.killed = true }

func (r *records) Restart(tb testing.TB) { tb.Helper(); r.server.Restart(tb); r.killed = false }

func (r *records) LoseClaim() { r.LoseReplyTo("INSERT INTO interlock_record") }

func (r *records) LoseCommit() { r.LoseReplyTo("SET state = $3::text") }

// Measure counts the traffic to PostgreSQL.
func (r *records) Measure(_ testing.TB, run func()) idemcases.Cost {
	before := r.Sent()
	run()
	n := r.Sent() - before
	return idemcases.Cost{Trips: n, Requests: n}
}

// cost is the cost of requests one by one.
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
	execute(t, r.db, "CREATE TABLE effect (number bigint NOT NULL)")
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

func (r transactions) Gather(tb testing.TB, locker *core.Locker, opts ...gather.Option) func(ctx context.Context, key string, number int) error {
	tb.Helper()
	batches := pgstore.Gather(r.stores["interlock"].Store, locker, pgstore.Each(func(ctx context.Context, tx *pgstore.Transaction, _ string, number int) (int, error) {
		_, err := tx.ExecContext(ctx, "INSERT INTO effect VALUES ($1::bigint)", number)
		return number, err
	}), opts...)
	return func(ctx context.Context, key string, number int) error {
		got, err := batches.Do(ctx, key, number)
		if err == nil && got != number {
			tb.Errorf("the result of %d; want that of %d", got, number)
		}
		return err
	}
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
