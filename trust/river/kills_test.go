//go:build long

package river_test

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/internal/redistest"
	"github.com/interlock-go/interlock/trust/internal/child"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

type pgxTx = pgx.Tx

const (
	jobs      = 200
	accounts  = 5
	processes = 3
	kills     = 12
	// patience bounds a run. River's leader looks for the jobs of dead processes each half minute,
	// and another one leads within a quarter of a minute after the death of a leader.
	patience = 8 * time.Minute
)

// scene is a database with jobs, and processes that work them.
type scene struct {
	*testing.T
	orders orders
	db     *sql.DB

	mu    sync.Mutex
	slots [processes]slot
	dead  map[string]time.Time // by process: an instant at which it still lived, just before its end
}

// slot is the place of a process.
type slot struct {
	id    string
	since time.Time
	*child.Process
}

// Workers die in the middle of their jobs, in the middle of a snooze, and between the commit of a
// job and its release.
func TestJobsOfProcessesThatAreKilled(t *testing.T) {
	for name, atOne := range map[string]int{"a lock on PostgreSQL": 1, "two permits on Redis": 2} {
		t.Run(name, func(t *testing.T) {
			begin := time.Now()
			s := newScene(t, atOne)
			idle := s.play()
			s.judge(idle)
			t.Logf("took %v", time.Since(begin).Round(time.Second))
		})
	}
}

func newScene(t *testing.T, atOne int) *scene {
	t.Helper()
	server := pgtest.Start(t)
	s := &scene{T: t, orders: orders{DSN: server.DSN(), AtOne: atOne}, db: server.Open(t), dead: make(map[string]time.Time)}
	if atOne > 1 {
		s.orders.Redis = redistest.Start(t).Addr()
	}
	for _, text := range []string{
		"CREATE TABLE run (id bigserial, job bigint, account text, process text, began timestamptz, ended timestamptz)",
		"CREATE TABLE ledger (job bigint, account text)",
		"CREATE TABLE attempt (job bigint, ran boolean, took float8)",
	} {
		if _, err := s.db.ExecContext(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	store, err := pgstore.New(s.db)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.insert()
	return s
}

// insert makes River's tables and the jobs. The first account has more of them than the others,
// and they come first.
func (s *scene) insert() {
	s.Helper()
	pool, err := pgxpool.New(s.Context(), s.orders.DSN)
	if err != nil {
		s.Fatal(err)
	}
	defer pool.Close()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		s.Fatal(err)
	}
	if _, err := migrator.Migrate(s.Context(), rivermigrate.DirectionUp, nil); err != nil {
		s.Fatal(err)
	}
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{})
	if err != nil {
		s.Fatal(err)
	}
	var all []river.InsertManyParams
	for i := range jobs {
		account := 0
		if i >= jobs/4 {
			account = i % accounts
		}
		all = append(all, river.InsertManyParams{Args: debit{strconv.Itoa(account)}})
	}
	if _, err := client.InsertMany(s.Context(), all); err != nil {
		s.Fatal(err)
	}
}

// play works all jobs, and returns the longest row of looks at which a worker was idle beside a
// job that was ready.
func (s *scene) play() (idle int) {
	for i := range s.slots {
		s.begin(i)
	}
	defer func() {
		for i := range s.slots {
			s.slots[i].Kill()
		}
	}()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	var killer sync.WaitGroup
	defer killer.Wait()
	killer.Go(func() {
		for range kills {
			if !sleep(ctx, time.Duration(500+rand.IntN(2000))*time.Millisecond) {
				return
			}
			i := rand.IntN(processes)
			s.kill(i)
			s.begin(i)
		}
	})
	row := 0
	for n := 0; ; n++ {
		left, waste := s.look()
		if left == 0 {
			cancel()
			return idle
		}
		if row++; !waste {
			row = 0
		}
		idle = max(idle, row)
		if n%100 == 0 {
			s.Logf("%d jobs left", left)
		}
		if !sleep(ctx, 100*time.Millisecond) {
			s.Fatalf("%d jobs are left after %v", left, patience)
		}
	}
}

func (s *scene) begin(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.orders
	o.ID = fmt.Sprintf("%d-%d", i, len(s.dead))
	p, err := launch(o)
	if err != nil {
		s.Error(err)
		return
	}
	s.slots[i] = slot{o.ID, time.Now(), p}
}

func (s *scene) kill(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead[s.slots[i].id] = time.Now()
	s.slots[i].Kill()
}

// look returns how many jobs are left, and whether a worker of a process that has been there for a
// while is idle beside a job that has been ready for a second.
func (s *scene) look() (left int, waste bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ready int
	err := s.db.QueryRowContext(s.Context(), `SELECT count(*) FILTER (WHERE state <> 'completed'),
		count(*) FILTER (WHERE state = 'available' AND scheduled_at < now() - interval '1 second') FROM river_job`).Scan(&left, &ready)
	if err != nil {
		s.Fatal(err)
	}
	for _, p := range s.slots {
		var busy int
		err := s.db.QueryRowContext(s.Context(), `SELECT count(*) FROM river_job
			WHERE state = 'running' AND attempted_by[array_upper(attempted_by, 1)] = $1`, p.id).Scan(&busy)
		if err != nil {
			s.Fatal(err)
		}
		waste = waste || ready > 0 && busy < workers && time.Since(p.since) > 5*time.Second
	}
	return left, waste
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// judge reads the files of the processes.
func (s *scene) judge(idle int) {
	most, runs, cut := s.atOnce()
	var ledger, debited, attempts, refused, snoozes, failures int
	var held, blocked float64
	s.read("SELECT count(*), count(DISTINCT job) FROM ledger", &ledger, &debited)
	s.read(`SELECT count(*), count(*) FILTER (WHERE NOT ran), percentile_cont(0.5) WITHIN GROUP (ORDER BY took) FILTER (WHERE ran),
		percentile_cont(0.5) WITHIN GROUP (ORDER BY took) FILTER (WHERE NOT ran) FROM attempt`, &attempts, &refused, &held, &blocked)
	s.read("SELECT coalesce(sum((metadata->>'snoozes')::int), 0), coalesce(sum(array_length(errors, 1)), 0) FROM river_job", &snoozes, &failures)
	s.Logf("%d jobs, %d debits of %d jobs, %d runs (%d cut off by %d kills); of an account at most %d at once; %d attempts, "+
		"%d without their lock, %d snoozes, %d errors; an attempt with its lock took %.0f ms, without %.1f ms; "+
		"a worker idle beside a ready job at %d looks in a row", jobs, ledger, debited, runs, cut, len(s.dead), most, attempts,
		refused, snoozes, failures, held*1000, blocked*1000, idle)
	for text, n := range s.errors() {
		s.Logf("%d attempts failed: %s", n, text)
	}
	if most > s.orders.AtOne {
		s.Errorf("%d jobs of an account ran at once; want at most %d", most, s.orders.AtOne)
	}
	if ledger != jobs || debited != jobs {
		s.Errorf("%d debits of %d jobs; want each of the %d once", ledger, debited, jobs)
	}
	if blocked > held/2 {
		s.Errorf("an attempt without its lock took %.0f ms; want less than half of a job's %.0f ms", blocked*1000, held*1000)
	}
	if idle > 20 {
		s.Errorf("a worker was idle beside a ready job at %d looks in a row; want at most 20", idle)
	}
	if cut == 0 || refused == 0 {
		s.Errorf("%d runs were cut off, and %d attempts refused: the run has tested nothing", cut, refused)
	}
}

// errors counts the errors of attempts by their text.
func (s *scene) errors() map[string]int {
	s.Helper()
	rows, err := s.db.QueryContext(s.Context(), "SELECT e->>'error', count(*) FROM river_job, unnest(errors) e GROUP BY 1")
	if err != nil {
		s.Fatal(err)
	}
	defer rows.Close()
	all := make(map[string]int)
	for rows.Next() {
		var text string
		var n int
		if err := rows.Scan(&text, &n); err != nil {
			s.Fatal(err)
		}
		all[text] = n
	}
	if err := rows.Err(); err != nil {
		s.Fatal(err)
	}
	return all
}

func (s *scene) read(query string, to ...any) {
	s.Helper()
	if err := s.db.QueryRowContext(s.Context(), query).Scan(to...); err != nil {
		s.Fatalf("%s: %v", query, err)
	}
}

// atOnce returns how many jobs of an account ran at once at the most, how many runs there were, and
// how many of them a kill has cut off. A run without an end counts until its process was killed; a
// run that has failed counts for its beginning.
func (s *scene) atOnce() (most, runs, cut int) {
	rows, err := s.db.QueryContext(s.Context(), "SELECT account, process, began, ended FROM run")
	if err != nil {
		s.Fatal(err)
	}
	defer rows.Close()
	type event struct {
		at    time.Time
		delta int
	}
	events := make(map[string][]event)
	for rows.Next() {
		var account, process string
		var began time.Time
		var ended sql.NullTime
		if err := rows.Scan(&account, &process, &began, &ended); err != nil {
			s.Fatal(err)
		}
		runs++
		until := ended.Time
		if !ended.Valid {
			cut++
			if until = s.dead[process]; until.Before(began) { // it began while the test sent the signal
				until = began
			}
		}
		events[account] = append(events[account], event{began, 1}, event{until, -1})
	}
	if err := rows.Err(); err != nil {
		s.Fatal(err)
	}
	for _, all := range events {
		slices.SortFunc(all, func(a, b event) int { return cmp.Or(a.at.Compare(b.at), a.delta-b.delta) })
		now := 0
		for _, e := range all {
			now += e.delta
			most = max(most, now)
		}
	}
	return most, runs, cut
}
