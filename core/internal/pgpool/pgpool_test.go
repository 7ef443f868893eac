package pgpool_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/internal/pgpool"
)

// state is an error of the server, as pgx and lib/pq have it.
type state string

func (s state) Error() string    { return "ERROR: (SQLSTATE " + string(s) + ")" }
func (s state) SQLState() string { return string(s) }

// ending is a server that ends a session when a statement asks for it.
type ending struct{}

func (e ending) Connect(context.Context) (sqldriver.Conn, error) { return e, nil }
func (ending) Driver() sqldriver.Driver                          { return nil }
func (ending) Prepare(string) (sqldriver.Stmt, error)            { return nil, state("57P01") }
func (ending) Begin() (sqldriver.Tx, error)                      { return nil, errors.New("no transactions") }
func (ending) Close() error                                      { return nil }

func TestAConnectionThatOnlyReadsIsGivenUp(t *testing.T) {
	for err, want := range map[error]int{
		state("25006"):     0,
		state("0A000"):     0, // of lib/pq, at the begin of a transaction
		pgpool.ErrReadOnly: 0,
		state("42501"):     1,
		nil:                1,
	} {
		db := sql.OpenDB(ending{})
		if got := pgpool.On(t.Context(), db, func(*sql.Conn) error { return err }); !errors.Is(got, err) {
			t.Errorf("%v has become %v", err, got)
		}
		if n := db.Stats().OpenConnections; n != want {
			t.Errorf("%v: %d connections are left; want %d", err, n, want)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}
}

// shared is a server whose pool has two connections in all, which others use, too.
type shared struct{ ending }

func (s shared) Connect(ctx context.Context) (sqldriver.Conn, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
func (s shared) Driver() sqldriver.Driver          { return s }
func (shared) Open(string) (sqldriver.Conn, error) { return nil, errors.ErrUnsupported }
func (shared) MaxConns() int                       { return 2 }
func (shared) AcquiredConns() int                  { return 2 }

func TestAPoolThatStaysInUseNamesTheOption(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	own := sql.OpenDB(ending{})
	own.SetMaxOpenConns(1)
	held, err := own.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	free := sql.OpenDB(ending{})
	free.SetMaxOpenConns(1)
	for name, c := range map[string]struct {
		db   *sql.DB
		want string
	}{
		"handlers have all":                   {own, "all 1 connections of the pool stayed in use: the option Records"},
		"handlers have all of another's pool": {sql.OpenDB(shared{}), "all 2 connections of the pool stayed in use: the option Records"},
		"one is free":                         {free, "context canceled"},
	} {
		err := pgpool.On(ended, c.db, func(*sql.Conn) error { return nil })
		if err == nil || !strings.HasPrefix(err.Error(), c.want) || !errors.As(err, new(pgpool.UnsentError)) {
			t.Errorf("%s: %v; want an error that nothing was sent, which begins with %q", name, err, c.want)
		}
	}
	if err := errors.Join(held.Close(), own.Close(), free.Close()); err != nil {
		t.Error(err)
	}
}

func TestAnErrorOfOneRequestIsToldFromAnErrorOfAll(t *testing.T) {
	for text, ones := range map[state]bool{
		"22021": true, "54000": true, "XX001": true, "P0001": true, "23514": true, "42501": true,
		"42P01": false, "0A000": false, "3F000": false, "28000": false, "57014": false, "53100": false, "25006": false, "": false,
	} {
		if got := pgpool.MayBeOnes(fmt.Errorf("some layer: %w", text)); got != ones {
			t.Errorf("%q may be because of one request: %v; want %v", text, got, ones)
		}
	}
	if pgpool.MayBeOnes(errors.New("broken pipe")) {
		t.Error("a broken connection is taken for an error of one request")
	}
}

// away is a server that refuses connections, until it is back.
type away struct {
	ending
	dials atomic.Int64
	back  atomic.Bool
}

func (a *away) Connect(context.Context) (sqldriver.Conn, error) {
	if a.dials.Add(1); a.back.Load() {
		return a.ending, nil
	}
	time.Sleep(time.Millisecond)
	return nil, errors.New("connection refused")
}

// A caller that waits for its turn to connect gets the reason of the others, and all go on when one has connected.
func TestTriesToConnectToAServerThatIsAwayAreSpaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &away{}
		db := sql.OpenDB(server)
		defer func() { _ = db.Close() }()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var callers sync.WaitGroup
		for range 200 {
			callers.Go(func() {
				for ctx.Err() == nil {
					if _, err := pgpool.Conn(ctx, db); ctx.Err() == nil && (err == nil || !strings.Contains(err.Error(), "refused")) {
						t.Errorf("%v; want the refusal of the server", err)
					}
				}
			})
		}
		callers.Wait()
		if n := server.dials.Load(); n < 50 || n > 300 { // all 200 have begun before the first has failed
			t.Errorf("%d tries in a second, want about 50 after the first ones", n)
		}
		server.back.Store(true)
		began := time.Now()
		for range 200 {
			callers.Go(func() {
				conn, err := pgpool.Conn(t.Context(), db)
				if err != nil {
					t.Error(err)
					return
				}
				_ = conn.Close()
			})
		}
		callers.Wait()
		if took := time.Since(began); took > 50*time.Millisecond {
			t.Errorf("all callers had a connection %v after the server was back, want at most two pauses", took)
		}
	})
}
