package pgstore_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/internal/logtest"
)

// denying is a database that refuses each statement.
type denying struct{ broken }

func (d denying) Connect(context.Context) (sqldriver.Conn, error) { return d, nil }
func (denying) Prepare(string) (sqldriver.Stmt, error)            { return nil, denied{} }

// denied is the error of the server, as pgx and lib/pq have it.
type denied struct{}

func (denied) Error() string    { return "permission denied for table interlock_record" }
func (denied) SQLState() string { return "42501" }

// TestWhatFailsInTheBackgroundIsLoggedOnceAMinute is about work for which no caller waits.
func TestWhatFailsInTheBackgroundIsLoggedOnceAMinute(t *testing.T) {
	for name, c := range map[string]struct {
		begin func(t *testing.T, s *pgstore.Store)
		says  string
	}{
		"the sweep of records": {func(*testing.T, *pgstore.Store) {}, "records whose time has ended were not deleted"},
		"the sweep of locks": {func(t *testing.T, s *pgstore.Store) {
			_, _ = s.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "o"}) // it begins with the first request
		}, "rows of locks that no owner holds were not deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := sql.OpenDB(denying{})
				defer func() { _ = db.Close() }()
				var log logtest.Log
				s, err := pgstore.New(db, pgstore.SweepEvery(time.Second), pgstore.Logger(log.Logger()))
				if err != nil {
					t.Fatal(err)
				}
				c.begin(t, s)
				time.Sleep(59 * time.Second)
				synctest.Wait()
				lines(t, log.String(), c.says, 1)
				time.Sleep(5 * time.Second)
				synctest.Wait()
				lines(t, log.String(), c.says, 2)
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// lines wants so many lines that say something, each with the cause.
func lines(t *testing.T, log, says string, want int) {
	t.Helper()
	got := 0
	for line := range strings.Lines(log) {
		if strings.Contains(line, says) {
			got++
			if !strings.Contains(line, denied{}.Error()) {
				t.Errorf("without the cause: %s", line)
			}
		}
	}
	if got != want {
		t.Errorf("%d lines say %q; want %d", got, says, want)
	}
}

// pooled is a database on another pool, which has few connections.
type pooled struct{ denying }

func (pooled) Driver() sqldriver.Driver { return four{} }

type four struct{ sqldriver.Driver }

func (four) MaxConns() int { return 4 }

// TestLocksKeepNoConnectionOfASmallPool is about a pool of pgx. Its sql.DB does not have
// the bound of the pool.
func TestLocksKeepNoConnectionOfASmallPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := sql.OpenDB(pooled{})
		defer func() { _ = db.Close() }()
		var log logtest.Log
		s, err := pgstore.New(db, pgstore.SweepEvery(-1), pgstore.Logger(log.Logger()))
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "o"}); !errors.As(err, new(denied)) {
				t.Errorf("Acquire: %v", err)
			}
			synctest.Wait()
			if n := db.Stats().InUse; n != 0 {
				t.Errorf("%d connections are kept between two statements", n)
			}
		}
		if !strings.Contains(log.String(), "the option Records of package pgstore") {
			t.Errorf("the warning does not name the option: %s", log.String())
		}
		if n := strings.Count(log.String(), "max_open_connections=4"); n != 1 {
			t.Errorf("%d warnings that the pool is small; want 1", n)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}
