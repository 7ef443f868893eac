package pgxstore_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/pgxstore"
)

func TestABadListenerIsRefused(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), "host=/nowhere") // it connects when a connection is needed
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := pgxstore.NewListener(nil); !errors.Is(err, core.ErrConfig) {
		t.Errorf("without a pool: %v", err)
	}
	for _, d := range []time.Duration{0, -1} {
		if _, err := pgxstore.NewListener(pool, pgxstore.CheckEvery(d)); !errors.Is(err, core.ErrConfig) {
			t.Errorf("CheckEvery(%v): %v", d, err)
		}
	}
	l, err := pgxstore.NewListener(pool)
	if err != nil {
		t.Fatal(err)
	}
	for _, channel := range []string{"", "a\x00b", strings.Repeat("x", 64)} {
		err := l.Listen(t.Context(), channel, func(string) {}, func(bool) {})
		if !errors.Is(err, core.ErrConfig) {
			t.Errorf("channel %q: %v", channel, err)
		}
	}
}

func TestTxOutsideOfARequest(t *testing.T) {
	if _, err := pgxstore.Tx(t.Context()); !errors.Is(err, idempotency.ErrNoAttempt) {
		t.Errorf("Tx returns %v", err)
	}
}

// foreign is a database of another driver.
type foreign struct{}

func (f foreign) Connect(context.Context) (sqldriver.Conn, error) { return f, nil }
func (foreign) Driver() sqldriver.Driver                          { return nil }
func (foreign) Prepare(string) (sqldriver.Stmt, error)            { return nil, errors.New("no statements") }

func (foreign) Begin() (sqldriver.Tx, error) { return nil, errors.New("no transactions") }
func (foreign) Close() error                 { return nil }

func TestATransactionOfAnotherDriverHasNoView(t *testing.T) {
	db := sql.OpenDB(foreign{})
	defer db.Close()
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := pgxstore.TxOn(conn); !errors.Is(err, core.ErrConfig) {
		t.Errorf("TxOn: %v", err)
	}
}

func TestADatabaseOnAPoolSaysHowManyConnectionsThereAre(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), "host=/nowhere pool_max_conns=4")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	db := pgxstore.DB(pool)
	defer db.Close()
	if n := db.Driver().(interface{ MaxConns() int }).MaxConns(); n != 4 {
		t.Errorf("the driver says %d connections; the pool has 4", n)
	}
}

// clogged is the handler of a log that leads into a pipe that no process reads.
type clogged struct {
	slog.Handler
	read chan struct{}
}

func (c clogged) Enabled(context.Context, slog.Level) bool { <-c.read; return true }

// A listener that waits for its log receives nothing, and its process learns late of each release.
func TestAListenerConnectsAgainWhileItsLogBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config, err := pgxpool.ParseConfig("host=/nowhere")
		if err != nil {
			t.Fatal(err)
		}
		tries := 0
		config.BeforeConnect = func(context.Context, *pgx.ConnConfig) error { tries++; return errors.New("no server") }
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		pipe := clogged{slog.DiscardHandler, make(chan struct{})}
		l, err := pgxstore.NewListener(pool, pgxstore.Logger(slog.New(pipe)))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = l.Listen(ctx, "c", func(string) {}, func(bool) {})
		}()
		time.Sleep(time.Minute)
		synctest.Wait()
		if tries < 2 {
			t.Errorf("%d connections were tried in a minute, while the log blocks; want more", tries)
		}
		close(pipe.read)
		stop()
		<-ended
		pool.Close()
	})
}
